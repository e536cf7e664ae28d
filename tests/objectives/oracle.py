"""The mathematics once more, in float64 numpy and plain loops, sharing nothing with the code."""

import numpy as np

Array = np.ndarray


def token_log_ratio(c: Array, o: Array, m: Array) -> Array:
    out = np.zeros(c.shape)
    for i, t in zip(*np.nonzero(m), strict=True):
        out[i, t] = min(max(c[i, t] - o[i, t], -20.0), 20.0)
    return out


def sequence_log_ratio(c: Array, o: Array, m: Array) -> Array:
    out = np.zeros(c.shape)
    for i in range(c.shape[0]):
        kept = np.flatnonzero(m[i])
        if kept.size:
            out[i, kept] = min(sum(c[i, t] - o[i, t] for t in kept) / kept.size, 10.0)
    return out


def _advantage(a: Array, i: int, t: int) -> float:
    return float(a[i] if a.ndim == 1 else a[i, t])


def plain(c: Array, a: Array, m: Array) -> Array:
    out = np.zeros(c.shape)
    for i, t in zip(*np.nonzero(m), strict=True):
        out[i, t] = -_advantage(a, i, t) * c[i, t]
    return out


def clipped(
    c: Array, o: Array, a: Array, m: Array, *, low: float, high: float, dual: float, level: str
) -> Array:
    log = token_log_ratio(c, o, m) if level == "token" else sequence_log_ratio(c, o, m)
    out = np.zeros(c.shape)
    for i, t in zip(*np.nonzero(m), strict=True):
        r, adv = np.exp(log[i, t]), _advantage(a, i, t)
        gain = min(r * adv, min(max(r, 1 - low), 1 + high) * adv)
        if dual and adv < 0:
            gain = max(gain, dual * adv)
        out[i, t] = -gain
    return out


def cispo(c: Array, o: Array, a: Array, m: Array, *, low: float, high: float) -> Array:
    log, out = token_log_ratio(c, o, m), np.zeros(c.shape)
    for i, t in zip(*np.nonzero(m), strict=True):
        weight = min(max(np.exp(log[i, t]), 1 - low), 1 + high)
        out[i, t] = -weight * _advantage(a, i, t) * c[i, t]
    return out


def sapo(c: Array, o: Array, a: Array, m: Array, *, positive: float, negative: float) -> Array:
    log, out = token_log_ratio(c, o, m), np.zeros(c.shape)
    for i, t in zip(*np.nonzero(m), strict=True):
        adv = _advantage(a, i, t)
        tau = positive if adv > 0 else negative
        out[i, t] = -adv * 4 / tau / (1 + np.exp(-tau * (np.exp(log[i, t]) - 1)))
    return out


def gmpo(c: Array, o: Array, a: Array, m: Array, *, low: float, high: float) -> Array:
    log, out = token_log_ratio(c, o, m), np.zeros(c.shape)
    for i in range(c.shape[0]):
        kept = np.flatnonzero(m[i])
        product = 1.0
        for t in kept:
            sign = np.sign(_advantage(a, i, t))
            r = np.exp(log[i, t])
            bounded = min(max(r, np.exp(-low)), np.exp(high))
            if sign:
                r = min(r**sign, bounded**sign) ** sign
            product *= r ** (1 / kept.size)
        for t in kept:
            out[i, t] = -product * _advantage(a, i, t)
    return out


def kl(c: Array, ref: Array, m: Array, estimator: str) -> Array:
    out = np.zeros(c.shape)
    for i, t in zip(*np.nonzero(m), strict=True):
        d = c[i, t] - ref[i, t]
        x = min(-d, 20.0)
        out[i, t] = {"k1": d, "k2": d * d / 2, "k3": np.exp(x) - x - 1}[estimator]
    return out


def engine(o: Array, mu: Array, m: Array, *, correction: str, low: float, high: float) -> Array:
    out = np.zeros(o.shape)
    for i in range(o.shape[0]):
        kept = np.flatnonzero(m[i])
        logs = {t: 0.0 if np.isnan(mu[i, t]) else o[i, t] - mu[i, t] for t in kept}
        for t in kept:
            w = np.exp(logs[t])
            mean = np.exp(sum(logs.values()) / len(logs))
            out[i, t] = {
                "none": 1.0,
                "truncate": min(w, high),
                "mask": w if low <= w <= high else 0.0,
                "sequence-mask": w if low <= mean <= high else 0.0,
            }[correction]
    return out


def reduce(loss: Array, m: Array, loss_type: str, max_length: int) -> tuple[float, float]:
    """Return numerator and weight."""
    numerator, tokens, sequences = 0.0, 0, 0
    for i in range(loss.shape[0]):
        kept = np.flatnonzero(m[i])
        if not kept.size:
            continue
        total = sum(loss[i, t] for t in kept)
        tokens += kept.size
        sequences += 1
        numerator += {
            "token-mean": total,
            "seq-mean-token-mean": total / kept.size,
            "seq-mean-token-sum": total,
            "seq-mean-token-sum-fixed": total / max_length,
        }[loss_type]
    return numerator, float(tokens if loss_type == "token-mean" else sequences)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def divergence(p_student: Array, p_teacher: Array, kind: str, beta: float = 0.5) -> Array:
    """Return the divergence of probabilities over the last axis."""

    def kl_of(p: Array, q: Array) -> Array:
        return (p * np.log(p / q)).sum(-1)

    mixture = (1 - beta) * p_student + beta * p_teacher
    return {
        "forward_kl": kl_of(p_teacher, p_student),
        "reverse_kl": kl_of(p_student, p_teacher),
        "jsd": beta * kl_of(p_teacher, mixture) + (1 - beta) * kl_of(p_student, mixture),
    }[kind]


def preference(h: Array, *, beta: float, kind: str, smoothing: float) -> Array:
    sigma = 1 / (1 + np.exp(-beta * h))
    right, wrong = -np.log(sigma), -np.log(1 - sigma)
    return {
        "sigmoid": (1 - smoothing) * right + smoothing * wrong,
        "robust": ((1 - smoothing) * right - smoothing * wrong) / (1 - 2 * smoothing),
        "ipo": (h - 1 / (2 * beta)) ** 2,
        "hinge": np.maximum(0, 1 - beta * h),
    }[kind]
