"""Texts and conversations into ids and back, from the files that a target sends."""

import json
import subprocess
import sys
import threading
import time

import pytest
import tokenizers
from real_tokenizers import smollm2_directory, smollm2_tokenizer, table_tokenizer
from tokenizers import decoders, models
from transformers import AutoTokenizer

from coordinator.requests import ChatMessage
from coordinator.tokenizer import Tokenizer, check_token_ids
from coordinator.tools import NO_PARAMETERS, Tool
from paceline.engine.table_tokenizer import table_tokenizer_files
from paceline.errors import InvalidConfig, InvalidRequest

TEXTS = [
    "",
    " ",
    "Once upon a time, there were 1234  dragons.\n\n\tThe end.",
    "🙂 é́ 👩‍🚀 東京 안녕 مرحبا",
    "<|im_start|>user\nhi<|im_end|>",
    "def f(x):\n    return x ** 2  # 10%",
]
CONVERSATION = [
    ChatMessage("system", "You are brief."),
    ChatMessage("user", "Hello"),
    ChatMessage("assistant", "Hi."),
    ChatMessage("user", "1 + 1?  🙂"),
]


def table_files(**changes: object) -> dict[str, bytes]:
    """The table model's tokenizer with changes to its tokenizer_config.json."""
    files = {file.name: file.content for file in table_tokenizer_files()}
    config = json.loads(files["tokenizer_config.json"]) | changes
    return files | {"tokenizer_config.json": json.dumps(config).encode()}


@pytest.fixture(scope="module")
def transformers_own() -> AutoTokenizer:
    return AutoTokenizer.from_pretrained(smollm2_directory())


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text_are_those_of_transformers(transformers_own: AutoTokenizer, text: str) -> None:
    ids = smollm2_tokenizer().encode(text)
    assert list(ids) == transformers_own(text)["input_ids"]
    assert smollm2_tokenizer().decode(ids) == transformers_own.decode(
        list(ids), skip_special_tokens=True
    )


@pytest.mark.parametrize("turns", [1, 2, 3, 4])
def test_a_conversation_gives_the_ids_of_transformers(
    transformers_own: AutoTokenizer, turns: int
) -> None:
    messages = CONVERSATION[-turns:]
    expected = transformers_own.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages], add_generation_prompt=True
    )
    assert list(smollm2_tokenizer().encode_chat(messages)) == expected["input_ids"]


def test_the_facts_of_the_default_model_are_known() -> None:
    assert smollm2_tokenizer().vocab_size == 49152
    assert smollm2_tokenizer().eos_token_ids == (2,)
    assert smollm2_tokenizer().token_bytes(10813) == b"\xf0\x9f"
    assert smollm2_tokenizer().token_bytes(2) == b""
    assert smollm2_tokenizer().token_bytes(60_000) == b""


@pytest.mark.parametrize("max_tokens", [1, 7])
def test_a_text_of_the_longest_tokens_is_not_too_long(max_tokens: int) -> None:
    tokenizer = smollm2_tokenizer()
    longest = max((tokenizer.decode([id]) for id in range(tokenizer.vocab_size)), key=len)
    assert len(tokenizer.encode(longest * max_tokens, max_tokens)) == max_tokens
    with pytest.raises(InvalidRequest, match="prompt: has"):
        tokenizer.encode(longest * max_tokens + longest[0], max_tokens)


def test_other_threads_run_while_a_long_text_is_read() -> None:
    reader = threading.Thread(target=smollm2_tokenizer().encode, args=("hello world " * 100_000,))
    reader.start()
    num_turns = 0
    while reader.is_alive():
        num_turns += 1
        time.sleep(0.001)
    assert num_turns > 20


def test_a_model_that_begins_texts_with_a_token_gets_it_once() -> None:
    table = table_tokenizer()
    assert table.encode("ab") == (256, 97, 98)
    assert table.encode_chat([ChatMessage("user", "a")]) == (256, 259, 97, 260)


def test_settings_of_the_config_take_the_place_of_the_post_processor() -> None:
    plain = Tokenizer(table_files(add_bos_token=False).items())
    assert plain.encode("a") == (97,)
    both = Tokenizer(table_files(add_bos_token=True, add_eos_token=True).items())
    assert both.encode("a") == (256, 97, 257)


def test_importing_and_using_it_does_not_load_torch_or_transformers() -> None:
    program = (
        "import pathlib, sys\n"
        "from coordinator.text_stream import TextStream\n"
        "from coordinator.tokenizer import Tokenizer\n"
        "files = [(p.name, p.read_bytes()) for p in pathlib.Path(sys.argv[1]).glob('*.json*')]\n"
        "tokenizer = Tokenizer(files)\n"
        "assert TextStream(tokenizer).feed(tokenizer.encode('Hello')).text == 'Hello'\n"
        "print({'torch', 'transformers', 'numpy'} & sys.modules.keys())\n"
    )
    command = [sys.executable, "-c", program, str(smollm2_directory())]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"


def sentencepiece_files(decoder: object) -> dict[str, bytes]:
    """A tokenizer of the kind that Llama 2 and Gemma have, with a few words and all bytes."""
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary += ["▁Hello", "▁world", "!", "é"]
    ids = {token: index for index, token in enumerate(vocabulary)}
    backend = tokenizers.Tokenizer(models.BPE(ids, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoder
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return {"tokenizer.json": backend.to_str().encode()}


GEMMA_DECODER = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
)
LLAMA_DECODER = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(content=" ", left=1, right=0),
    ]
)


@pytest.mark.parametrize("decoder", [GEMMA_DECODER, LLAMA_DECODER])
def test_sentencepiece_ids_read_as_what_follows_a_prompt(decoder: object) -> None:
    files = sentencepiece_files(decoder)
    backend = tokenizers.Tokenizer.from_buffer(files["tokenizer.json"])
    smile = [3 + byte for byte in "🙂".encode()]
    answer = [260, *smile, 261, 2, 3 + 0x41, 262]
    prompt = [259]
    whole = backend.decode(prompt + answer, skip_special_tokens=True)
    text = Tokenizer(files.items()).decode(answer)
    assert text == " world🙂!Aé"
    assert backend.decode(prompt) + text == whole


def test_a_broken_byte_leaves_the_whole_characters_around_it_alone() -> None:
    tokenizer = Tokenizer(sentencepiece_files(GEMMA_DECODER).items())
    assert tokenizer.decode([3 + byte for byte in "é🙂".encode() + b"\xff"]) == "é🙂\ufffd"


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.CTC(), None])
def test_a_decoder_that_gives_tokens_no_bytes_is_refused_by_name(decoder: object) -> None:
    files = json.loads(sentencepiece_files(GEMMA_DECODER)["tokenizer.json"])
    files["decoder"] = json.loads(decoder.__getstate__()) if decoder else None
    with pytest.raises(InvalidConfig, match="decoder of tokenizer.json is") as error:
        Tokenizer({"tokenizer.json": json.dumps(files).encode()}.items())
    assert str(files["decoder"]) in error.value.message


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer.json": None}, "tokenizer.json is missing"),
        ({"tokenizer.json": b"{}"}, "tokenizer.json cannot be read"),
        ({"tokenizer_config.json": b"{"}, "tokenizer_config.json is not JSON"),
        ({"generation_config.json": b"[]"}, "generation_config.json holds list"),
        ({"chat_template.jinja": b"{% for"}, "chat template .* line 1"),
    ],
)
def test_files_that_cannot_be_used_are_named(files: dict[str, bytes | None], expected: str) -> None:
    changed = {name: data for name, data in (table_files() | files).items() if data is not None}
    with pytest.raises(InvalidConfig, match=expected):
        Tokenizer(changed.items())


def test_end_of_sequence_tokens_come_from_both_configs() -> None:
    files = table_files() | {"generation_config.json": b'{"eos_token_id": [260, 258]}'}
    assert Tokenizer(files.items()).eos_token_ids == (257, 258, 260)
    files = table_files(eos_token={"content": "<|system|>"}) | {"generation_config.json": b"{}"}
    assert Tokenizer(files.items()).eos_token_ids == (258,)
    assert Tokenizer(sentencepiece_files(GEMMA_DECODER).items()).eos_token_ids == ()


def test_a_prompt_is_never_cut_even_if_the_file_says_so() -> None:
    backend = tokenizers.Tokenizer.from_buffer(table_files()["tokenizer.json"])
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    files = table_files() | {"tokenizer.json": backend.to_str().encode()}
    assert Tokenizer(files.items()).encode("abcdef") == (256, *b"abcdef")


def test_of_named_templates_the_default_is_used_and_another_for_tools() -> None:
    templates = [
        {"name": "rag", "template": "{% wrong"},
        {"name": "tool_use", "template": "{{ tools[0].function.name }}<tool_call>"},
        {
            "name": "default",
            "template": "{{ messages[0].content }}{% generation %}!{% endgeneration %}",
        },
    ]
    tokenizer = Tokenizer(table_files(chat_template=templates).items())
    assert tokenizer.encode_chat([ChatMessage("user", "ab")]) == tuple(b"ab!")
    tools = [Tool("f", "", NO_PARAMETERS)]
    assert tokenizer.encode_chat([ChatMessage("user", "ab")], tools=tools) == tuple(b"f<tool_call>")


@pytest.mark.parametrize(
    ("template", "messages", "expected", "field"),
    [
        (None, CONVERSATION, "no chat template", "messages"),
        ("x", [], "messages is empty", "messages"),
        (
            "x",
            [ChatMessage("user", "a"), ChatMessage("robot", "b")],
            r"messages\[1\].role is 'robot'; expected one of system, user, assistant",
            "messages[1].role",
        ),
        (
            "{{ raise_exception('turns must alternate') }}",
            CONVERSATION,
            "refused by the chat template of the model: turns must alternate",
            "messages",
        ),
        ("{{ messages[0].content + 1 }}", CONVERSATION, "refused by the chat template", "messages"),
        ("{{ messages[9].content + '' }}", CONVERSATION, "refused by the chat", "messages"),
        (
            "{{ ''.__class__.__mro__ }}",
            CONVERSATION,
            "refused by the chat template of the model: access to attribute",
            "messages",
        ),
    ],
)
def test_a_conversation_that_does_not_fit_is_refused(
    template: str | None, messages: list[ChatMessage], expected: str, field: str
) -> None:
    tokenizer = Tokenizer(table_files(chat_template=template).items())
    with pytest.raises(InvalidRequest, match=expected) as error:
        tokenizer.encode_chat(messages)
    assert error.value.field == field


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"prompt holds half .* at character 2") as error:
        table_tokenizer().encode("ab\ud83d")
    assert error.value.field == "prompt"
    with pytest.raises(InvalidRequest, match="messages holds half"):
        table_tokenizer().encode_chat([ChatMessage("user", "\udc00")])


def test_ids_out_of_range_are_named_with_their_index() -> None:
    check_token_ids("prompt", [0, 260], 261)
    for wrong in (261, -1):
        with pytest.raises(
            InvalidRequest, match=rf"prompt\[1\] is {wrong}; expected a token id from 0 to 260"
        ) as error:
            check_token_ids("prompt", [5, wrong], 261)
        assert error.value.field == "prompt"
