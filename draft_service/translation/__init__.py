"""Between two tokenizers: the target's, which rounds speak, and the draft model's own.

`vocabulary` is one tokenizer, `respelling` follows a sequence in the other's tokens, and
`shared_tokens` says what the two have in common. Nothing here can change a text: what is translated
wrongly is rejected like any wrong draft.
"""
