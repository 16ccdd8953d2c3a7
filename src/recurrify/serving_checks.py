"""What a request to the server must hold: a malformed one is answered with status 400 and a sentence."""

import json
from typing import Any

from recurrify.errors import cut

__all__ = ["answer_errors"]

TEXTS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/responses": "input"}
"""The paths of requests for text, and the field with the text."""
MOST_TOKENS = 10**6
"""Of one answer."""
WHOLE = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), (1, MOST_TOKENS)),
    "seed": (0, 2**63 - 1),
    "n": (1, 1),
}
NUMBERS = {"temperature": (0, 100), "top_p": (1e-6, 1), "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2)}
BAD_VALUES = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""What libraries raise for values that cannot be used; everything else stays an error of the server."""


def _fault_in(path: str, content: bytes) -> str | None:
    """What is wrong with the content of a request to one of `TEXTS`; None if nothing is."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        return f"The request is not JSON: {' '.join(str(error).split())}."
    if not isinstance(body, dict):
        return f"The request must be a JSON object: got {_shown(body)}."
    text = TEXTS[path]
    if text not in body:
        return f"`{text}` is missing."
    given = body[text]
    if text == "messages":
        fault = _fault_in_messages(given)
    elif not isinstance(given, str) and not (text == "input" and isinstance(given, list) and given):
        fault = f"`{text}` must be text: got {_shown(given)}."
    else:
        fault = None if given else f"`{text}` is empty."
    return fault or _fault_in_numbers(body) or _fault_in_others(body)


def _fault_in_messages(messages: Any) -> str | None:
    if not (isinstance(messages, list) and messages):
        return f"`messages` must be a list of messages: got {_shown(messages)}."
    for number, message in enumerate(messages):
        where = f"`messages[{number}]`"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"{where} must be an object with a `role` and a `content`: got {_shown(message)}."
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                if not (isinstance(part, dict) and isinstance(part.get("text"), str)):
                    return f"A part of {where} is no text: got {_shown(part)}."
        elif not isinstance(content, str) and not (content is None and message.get("tool_calls")):
            return f"`content` of {where} must be text: got {_shown(content)}."
    return None


def _fault_in_numbers(body: dict[str, Any]) -> str | None:
    for allowed, kinds, what in ((WHOLE, int, "a whole number"), (NUMBERS, (int, float), "a number")):
        for name, (low, high) in allowed.items():
            value = body.get(name)
            fits = isinstance(value, kinds) and not isinstance(value, bool)
            if value is not None and not (fits and low <= value <= high):
                return f"`{name}` must be {what} from {low:g} to {high:g}: got {_shown(value)}."
    return None


def _fault_in_others(body: dict[str, Any]) -> str | None:
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop
    if stops is not None and not (isinstance(stops, list) and all(isinstance(one, str) and one for one in stops)):
        return f"`stop` must be text or a list of texts: got {_shown(stop)}."
    for name, kind, what in (("model", str, "a name"), ("stream", bool, "true or false")):
        if body.get(name) is not None and not isinstance(body[name], kind):
            return f"`{name}` must be {what}: got {_shown(body[name])}."
    return None


def _shown(value: Any) -> str:
    return cut(json.dumps(value), 60)


def answer_errors(app: Any) -> None:
    """Make the application of transformers' server answer malformed requests with status 400."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse

    def answer(sentence: str, status: int = 400) -> JSONResponse:
        return JSONResponse({"error": {"message": sentence, "type": "invalid_request_error"}}, status)

    async def bad_value(_: Request, error: Exception) -> JSONResponse:
        said = " ".join(str(error).split())
        return answer(f"The request cannot be answered: {type(error).__name__}{f': {said}' if said else ''}.")

    async def bad_request(_: Request, error: Any) -> JSONResponse:
        return answer(str(error.detail), 400 if error.status_code == 422 else error.status_code)

    async def bad_body(_: Request, error: Any) -> JSONResponse:
        return answer("; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()))

    for kind in BAD_VALUES:
        app.add_exception_handler(kind, bad_value)
    app.add_exception_handler(HTTPException, bad_request)
    app.add_exception_handler(RequestValidationError, bad_body)

    @app.middleware("http")
    async def check(request: Request, call_next: Any) -> Any:
        asks_for_text = request.method == "POST" and request.url.path in TEXTS
        fault = _fault_in(request.url.path, await request.body()) if asks_for_text else None
        return await call_next(request) if fault is None else answer(fault)
