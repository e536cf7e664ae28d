"""Reward functions that a configuration of the tests names."""

from tasks.rewards.reward import Score


def length(response_text: str, answer: str, payload: str) -> Score:
    return Score(float(len(response_text)), parts={"length": len(response_text)})


def fails_on_x(response_text: str, answer: str, payload: str) -> Score:
    if "x" in response_text:
        raise RuntimeError("no x" + "!" * 1000)
    return Score(1.0)


def not_finite(response_text: str, answer: str, payload: str) -> Score:
    return Score(float("nan"))


def echoes(response_text: str, answer: str, payload: str) -> Score:
    return Score(0.0, detail=f"{response_text}|{answer}|{payload}")


def plain_number(response_text: str, answer: str, payload: str) -> float:
    return 1.0


NOT_A_FUNCTION = 3
