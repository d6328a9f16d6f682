"""The command line of one launch: whose flag is whose, and what is put together from them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from batch_invariance.errors import ServerError, UsageError
from batch_invariance.live_invariance.flags import (
    UserFlags,
    check_user_flags,
    parse_known_flags,
)
from batch_invariance.live_invariance.launch import (
    LaunchSpec,
    build_argv,
    choose_port,
    engine_environment,
    scrub_environment,
    validate_ctx,
)

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-c,    --ctx-size N                     size of the prompt context (default: 0)
                                        (env: LLAMA_ARG_CTX_SIZE)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
--perf, --no-perf                       whether to enable timings, unlike --not-a-flag
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        use single unified KV buffer
--control-vector-layer-range START END
                                        layer range
--spec-type none,draft-simple,ngram-cache
                                        comma-separated list
--fim-qwen-1.5b-default                 use default Qwen 2.5 Coder 1.5B
-lv,   --verbosity, --log-verbosity N   Set the verbosity threshold. Values:
                                         - 0: generic output
--log-colors [on|off|auto]              Set colored logging
--metrics                               enable metrics
-hf,   -hfr, --hf-repo <user>/<model>[:quant]
                                        Hugging Face model repository
"""


def spec(*user_flags: str, known: frozenset[str] | None = None) -> LaunchSpec:
    return LaunchSpec(
        server_bin=Path("/opt/llama-server"),
        model=Path("/m/model.gguf"),
        ctx=2048,
        parallel=4,
        port=5005,
        api_key_file=Path("/s/key"),
        alias="cell",
        user_flags=UserFlags(user_flags),
        known_flags=known,
    )


def test_the_help_text_yields_every_spelling_and_no_word_of_its_prose() -> None:
    assert parse_known_flags(HELP) == {
        *("-h", "--help", "--usage", "-c", "--ctx-size", "-fa", "--flash-attn", "--perf"),
        *("--no-perf", "-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified", "--metrics"),
        *("--control-vector-layer-range", "--spec-type", "--fim-qwen-1.5b-default", "-lv"),
        *("--verbosity", "--log-verbosity", "--log-colors", "-hf", "-hfr", "--hf-repo"),
    }


def test_log_colors_that_take_no_value_are_not_passed_one() -> None:
    assert parse_known_flags("--log-colors      Enable colored logging\n") == frozenset()


@pytest.mark.parametrize(
    "flags",
    [
        ("-m", "x.gguf"),
        ("--model=x.gguf",),
        ("-hf", "a/b"),
        ("--docker-repo", "x"),
        ("--models-dir", "x"),
        ("--gpt-oss-20b-default",),
        ("--fim-qwen-7b-spec",),
        ("--vision-gemma-4b-default",),
        ("--embd-gemma-default",),
        ("--spec-default",),
        ("-c", "4096"),
        ("-c=4096",),
        ("--ctx-size=4096",),
        ("--ctx_size", "4096"),
        ("-np", "8"),
        ("--parallel", "8"),
        ("--host", "0.0.0.0"),
        ("--port=1",),
        ("--reuse-port",),
        ("--api-key", "k"),
        ("--api_key_file", "k"),
        ("--api-prefix", "/x"),
        ("--ssl-key-file", "k"),
        ("--metrics",),
        ("--no-slots",),
        ("--props",),
        ("-cram", "1"),
        ("--cache-ram=1",),
        ("--no-cache-prompt",),
        ("--cache-reuse", "1"),
        ("-v",),
        ("-lv", "1"),
        ("--log-disable",),
        ("--log-file", "x"),
        ("-md", "d.gguf"),
        ("--model-draft", "d.gguf"),
        ("--spec-type", "ngram-mod"),
        ("--draft-max", "3"),
        ("-ngld", "3"),
        ("--cache-type-k-draft", "f16"),
        ("-lcs", "x"),
        ("--lookup-cache-dynamic", "x"),
        ("--embedding",),
        ("--reranking",),
        ("--sleep-idle-seconds", "1"),
        ("--slot-save-path", "x"),
        ("--alias", "x"),
        ("--help",),
        ("--version",),
    ],
)
def test_what_the_driver_owns_is_refused_in_every_spelling(flags: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        check_user_flags(flags)
    assert flags[0].partition("=")[0].replace("_", "-") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_refused_flags_are_listed_at_once_with_their_owner() -> None:
    with pytest.raises(UsageError) as caught:
        check_user_flags(["--threads", "2", "--port", "1", "-c", "5", "--no-kv-unified", "x.gguf"])
    message = str(caught.value)
    assert "--port (the driver chooses the server's address)" in message
    assert "-c (the context is given by --ctx (per slot))" in message
    assert "'x.gguf' (belongs to no flag)" in message
    assert "threads" not in message


@pytest.mark.parametrize(
    "flags",
    [
        ("x.gguf",),
        ("--threads", "2", "x.gguf"),
        ("--threads=2", "x.gguf"),
        ("-nocb", "x.gguf"),
        ("--",),
        ("",),
    ],
)
def test_a_stray_word_is_refused(flags: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="belongs to no flag"):
        check_user_flags(flags)


def test_what_is_part_of_the_cell_is_the_users() -> None:
    flags = (
        "--kv-unified -nocb -b 512 -ub 128 -fa off -ctk q8_0 --cache-type-v=q8_0 -ngl 99 "
        "--threads 2 --temp 1.5 --seed -1 -n -1 --no-repack --control-vector-layer-range 1 2 "
        "--lora a.gguf --override-kv a.b=int:1"
    )
    check_user_flags(flags.split())
    check_user_flags([])


def test_defaults_of_the_user_flags() -> None:
    flags = UserFlags()
    assert (flags.cache_type_k, flags.cache_type_v, flags.flash_attn) == ("f16", "f16", "auto")
    assert (flags.batch_size, flags.ubatch_size, flags.kv_unified) == (2048, 512, False)


def test_user_flags_are_found_in_every_spelling_and_the_last_wins() -> None:
    words = (
        "-ctk q4_0 --cache_type_k=q8_0 --cache-type-v q5_0 -b 1 --batch-size=64 -ub 32 -fa off "
        "-kvu --no-kv-unified --kv-unified"
    )
    flags = UserFlags(tuple(words.split()))
    assert (flags.cache_type_k, flags.cache_type_v, flags.flash_attn) == ("q8_0", "q5_0", "off")
    assert (flags.batch_size, flags.ubatch_size, flags.kv_unified) == (64, 32, True)
    assert UserFlags(("-kvu", "-no-kvu")).kv_unified is False
    assert UserFlags(("-fa", "-nocb")).flash_attn == "on"
    with pytest.raises(UsageError, match="--batch-size needs a whole number, not 'many'"):
        _ = UserFlags(("-b", "many")).batch_size


def test_the_command_line_states_what_the_cell_pins() -> None:
    command = build_argv(spec("-ub", "128"))
    assert command.argv == (
        *("/opt/llama-server", "--model", "/m/model.gguf", "-c", "8192", "--parallel", "4"),
        *("--host", "127.0.0.1", "--port", "5005", "--api-key-file", "/s/key", "--alias", "cell"),
        *("--metrics", "--slots", "--cache-ram", "0", "--log-colors", "off", "-lv", "5"),
        *("--log-prefix", "--log-timestamps", "--no-kv-unified", "-ub", "128"),
    )
    assert command.omitted_flags == ()


@pytest.mark.parametrize("flag", ["-kvu", "--kv-unified", "--no-kv-unified", "--kv_unified"])
def test_unified_kv_is_left_to_a_user_who_states_it(flag: str) -> None:
    command = build_argv(spec(flag))
    assert [word for word in command.argv if "kv" in word] == [flag]
    assert command.argv[command.argv.index("-c") + 1] == "8192"


def test_flags_that_the_build_does_not_know_are_left_out_and_listed() -> None:
    command = build_argv(spec(known=frozenset({"--metrics", "--api-key-file"})))
    assert command.omitted_flags == (
        *("--alias", "--slots", "--cache-ram", "--log-colors", "-lv"),
        *("--log-prefix", "--log-timestamps", "--no-kv-unified"),
    )
    assert command.argv[-3:] == ("--api-key-file", "/s/key", "--metrics")
    assert {"--model", "-c", "--parallel", "--host", "--port"} <= set(command.argv)


def test_variables_that_the_server_reads_as_flags_do_not_reach_it() -> None:
    env = {"LLAMA_ARG_CTX_SIZE": "1", "LLAMA_API_KEY": "k", "HF_TOKEN": "t", "PATH": "/bin"}
    assert scrub_environment(env) == {"HF_TOKEN": "t", "PATH": "/bin"}


def test_the_chosen_port_can_be_bound_and_is_not_reserved() -> None:
    port = choose_port(frozenset())
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
    assert choose_port(frozenset({port})) != port


def test_no_port_outside_the_reserved_set_is_an_error() -> None:
    with pytest.raises(ServerError, match="reserve fewer ports"):
        choose_port(frozenset(range(65536)))


def test_the_context_is_a_multiple_of_256() -> None:
    validate_ctx(256)
    validate_ctx(8192)
    for ctx, nearest in ((1000, "768 or 1024"), (1, "256 or 512"), (-5, "256 or 512"), (0, "256")):
        with pytest.raises(UsageError, match=nearest):
            validate_ctx(ctx)


def test_the_variables_that_steer_the_engine_are_named() -> None:
    env = {"GGML_VK_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "2", "HOME": "/h", "LLAMA_ARG_X": "1"}
    assert engine_environment(env) == {"GGML_VK_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "2"}
