"""Parameters of OpenAI and vLLM that are not supported, each refused by its name.

A value that asks for nothing is let through, so that clients which send defaults work.
"""

from coordinator.http.fields import shown
from paceline.errors import InvalidRequest

_OF_VLLM: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "cache_salt": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "detokenize": (True,),
    "documents": ([],),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "include_reasoning": (True, False),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "priority": (0,),
    "prompt_embeds": (),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}

NEUTRAL: dict[str, tuple[object, ...]] = {
    "echo": (False,),
    "suffix": ("",),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (False, True),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "store": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "moderation": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory",),
    **_OF_VLLM,
}
"""The values of each that ask for nothing."""


def asks_for_nothing(name: str, value: object) -> bool:
    """Whether a parameter that is not supported can be left out. Refuses it when it cannot."""
    if name not in NEUTRAL:
        return False
    neutral = NEUTRAL[name]
    # In Python, 1 == True.
    equal = [v for v in neutral if v == value and isinstance(v, bool) == isinstance(value, bool)]
    if value is None or equal:
        return True
    expected = " or ".join([*map(shown, neutral), "nothing"])
    raise InvalidRequest(
        f"{name}: is {shown(value)}, which is not supported; expected {expected}", name
    )
