"""Uses a router as an application does: through OpenAI's own SDK.

usage: sdk_client.py ROUTER BROKEN PASSING
BROKEN is a router whose only worker dies in the middle of a stream, PASSING one whose worker embeds and has an adapter.

Fails with a traceback if anything is not as it should be; prints "ok" at the end.
"""

import json
import pathlib
import sys

import openai

REQUESTS = pathlib.Path(__file__).parent.parent / "data" / "requests"

PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": "Tell me a story"}]


def client(base):
    return openai.OpenAI(base_url=base + "/v1", api_key="any", max_retries=0, timeout=20)


def completions(router):
    whole = router.completions.create(model="m", prompt=PROMPT, max_tokens=4)
    assert len(whole.choices[0].text) == 4, whole
    assert whole.choices[0].finish_reason == "length", whole
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(PROMPT), 4), whole

    stream = router.completions.create(
        model="m", prompt=PROMPT, max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert len("".join(chunk.choices[0].text for chunk in chunks if chunk.choices)) == 4, chunks
    assert chunks[-1].usage.completion_tokens == 4, chunks


def chats(router):
    whole = router.chat.completions.create(model="m", messages=MESSAGES, max_tokens=4)
    message = whole.choices[0].message
    assert (message.role, len(message.content)) == ("assistant", 4), whole

    chunks = list(router.chat.completions.create(model="m", messages=MESSAGES, max_tokens=4, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant", chunks
    assert len("".join(chunk.choices[0].delta.content for chunk in chunks)) == 4, chunks
    assert chunks[-1].choices[0].finish_reason == "length", chunks


def models(router):
    assert [model.id for model in router.models.list()] == ["m", "alias/of-m"]
    assert router.models.retrieve("m").owned_by == "warmpath"


def errors(router):
    try:
        router.completions.create(model="other", prompt=PROMPT)
    except openai.NotFoundError as error:
        assert (error.code, error.param) == ("model_not_found", "model"), error
    else:
        raise AssertionError("an unknown model was found")

    try:
        router.completions.create(model="m", prompt="")
    except openai.BadRequestError as error:
        assert (error.param, error.type) == ("prompt", "invalid_request_error"), error
    else:
        raise AssertionError("an empty prompt was taken")


def passing(router):
    """Models of several kinds, and endpoints that only the worker understands."""
    listed = {model.id: model for model in router.models.list()}
    assert list(listed) == ["m", "alias/of-m", "m2", "org/sql"], listed
    assert (listed["m"].created, listed["m"].owned_by) == (7, "vllm"), listed
    adapter = router.models.retrieve("org/sql")
    assert (adapter.id, adapter.root, adapter.parent) == ("org/sql", "/sql", "m"), adapter
    assert router.models.retrieve("alias/of-m").root == "/m"

    for model in ("m", "alias/of-m", "org/sql"):
        found = router.embeddings.create(model=model, input="x", encoding_format="float")
        assert found.data[0].embedding == [0.25, -1.0], found

    for ask in (
        lambda: router.models.retrieve("other"),
        lambda: router.embeddings.create(model="other", input="x"),
        lambda: router.chat.completions.create(model="org/law", messages=MESSAGES),
    ):
        try:
            ask()
        except openai.NotFoundError as error:
            assert (error.code, error.param) == ("model_not_found", "model"), error
            assert error.request_id, error
        else:
            raise AssertionError("an unknown model was found")
    try:
        router.moderations.create(input="x")
    except openai.NotFoundError as error:
        assert error.type == "invalid_request_error", error
    else:
        raise AssertionError("a path that nobody serves was found")


def fields():
    """The requests of the conformance test have every field that this SDK can send."""
    from openai.types import completion_create_params as completion
    from openai.types.chat import chat_completion_assistant_message_param as assistant
    from openai.types.chat import chat_completion_stream_options_param as stream_options
    from openai.types.chat import chat_completion_user_message_param as user
    from openai.types.chat import completion_create_params as chat

    requests = {name: json.loads((REQUESTS / (name + ".json")).read_text()) for name in ("completions", "chat")}
    messages = {message["role"]: message for message in requests["chat"]["messages"]}
    for kind, sent in (
        (completion.CompletionCreateParamsStreaming, requests["completions"]),
        (chat.CompletionCreateParamsStreaming, requests["chat"]),
        (user.ChatCompletionUserMessageParam, messages["user"]),
        (assistant.ChatCompletionAssistantMessageParam, messages["assistant"]),
    ):
        missing = set(kind.__annotations__) - set(sent)
        assert not missing, (kind, missing)
    told = set(stream_options.ChatCompletionStreamOptionsParam.__annotations__)
    assert told == {"include_usage", "include_obfuscation"}, told


def broken(router):
    """A stream that was cut must never look whole."""
    texts = []
    try:
        for chunk in router.completions.create(model="m", prompt=PROMPT, stream=True):
            texts.append(chunk.choices[0].text)
    except openai.APIError as error:
        assert error.code == "upstream_broken", error
    else:
        raise AssertionError("a truncated stream ended as if it were whole: " + repr(texts))
    assert texts == ["a"], texts


def main():
    router = client(sys.argv[1])
    for check in (completions, chats, models, errors):
        check(router)
    broken(client(sys.argv[2]))
    passing(client(sys.argv[3]))
    fields()
    print("ok")


main()
