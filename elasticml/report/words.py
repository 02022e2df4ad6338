"""The legend of a report: what each word of its figures, tables and plots means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Scores of rows of one kind.
_SCORES: Final = {
    "accuracy": "Share of {} whose class is predicted.",
    "average precision": "Area under the precision-recall curve on {}; 1 is perfect.",
    "roc auc": "Area under the ROC curve on {}; 0.5 is chance, 1 is perfect.",
    "neg log loss": "Minus the mean log loss on {}; 0 is perfect.",
    "neg root mean squared error": "Minus the root of the mean squared error on {}.",
    "r2": "Explained share of the labels' variance on {}; 0 is the mean, 1 is perfect.",
    "rows": "Number of {} in the scores.",
}
#: Key figures, columns of the history, kinds of lanes and further words, each with its meaning.
WORDS: Final[dict[str, str]] = {
    "objective": "Mean loss over all examples plus penalty: what training makes small.",
    "gap": "Duality gap: an upper bound of how far the objective is from its optimum, computed by"
    " a certificate over all examples. Batch gradients compute it from the gradient's norm and the"
    " penalty. ≤ marks a bound of the gap itself, while examples are absent.",
    "rounds": "Number of rounds. In a round the driver sends the model to all members, and they"
    " send back sums over their examples.",
    "time": "Seconds from the start of the job to its end, with loading.",
    "members": "Processes that own a part of the examples and compute on it.",
    "lost": "Members that ended without having handed over their examples.",
    "given back": "Members that a policy or the cluster released, after others had taken over their"
    " examples.",
    "container-seconds": "Seconds of participation, summed over members: what the run costs.",
    "returned": "Members that joined after the first round, in place of lost ones.",
    "stand-in rounds": "Rounds in which estimates replaced the sums of absent examples.",
    "CUDA rounds": "Rounds in which members computed on a GPU.",
    "moved": "Bytes and chunks of examples that members sent to each other after the initial"
    " placement.",
    # Columns of the history.
    "round": "Number of the round; a row is the state at its beginning.",
    "seconds": "When the row was written, since the job started.",
    "step": "Length of the step that the model made in the round.",
    "absent examples": "Examples that no member owned, because their owner was lost.",
    "stand ins": "Groups of absent examples that an estimate replaced.",
    "moved bytes": "Bytes of examples that members sent to each other so far.",
    "sent bytes": "Bytes of models and sums sent so far.",
    "objective full": "The objective over all examples, computed after the run.",
    "member objective": "Objective of a single member's model, beside that of the mean of all.",
    "gradient norm": "Euclidean norm of the objective's gradient.",
    "line search steps": "Step lengths tried in the round.",
    "corrections": "Exchanges repeated in the round because members were lost in it.",
    "pairs": "Pairs of steps and gradient changes from which L-BFGS estimates the curvature.",
    "skipped pairs": "Pairs that L-BFGS did not keep, because they had no positive curvature.",
    "products": "Products of the Hessian with a vector in the round.",
    "radius": "Radius of TRON's trust region.",
    "hessians": "Hessians that Newton's method has computed.",
    "optimizer": "The optimizer that was chosen for the shape of the data.",
    "probes": "Products of the Hessian that were computed for stand-ins.",
    "curvature from": "How the stand-ins estimate the curvature of absent examples.",
    "likeness": "How far the absent examples' gradient differs from its estimate, relative to its"
    " norm.",
    "error bound": "Upper bound of the error of an estimated objective.",
    "gap bound": "Upper bound of the distance to the optimum while examples are absent.",
    "primal": "Objective at the round's certificate.",
    "dual": "Dual objective at the round's certificate; the gap is primal minus dual.",
    "gap best": "Smallest gap certified so far.",
    "gamma": "Share of the members' updates that was added to the model.",
    "damping": "σ′: how strongly each member allows for the updates of the others.",
    "unset": "Examples whose dual variable was lost and starts at zero.",
    "visited": "Examples that members visited in the round.",
    "resyncs": "Times that the model was computed again from the dual variables.",
    "drift": "Rounding error of the model at the last such computation.",
    "support": "Columns with a coefficient other than zero.",
    "gathered": "Columns whose data members gathered into one block.",
    "epoch": "Passes over all examples so far.",
    "samples": "Examples processed so far.",
    "skipped": "Updates that were left out.",
    "holdout loss": "Mean loss on examples kept out of training.",
    "holdout accuracy": "Accuracy on examples kept out of training.",
    "passes": "Passes over all examples so far.",
    "examples": "Examples processed so far.",
    "batches": "Mini-batches processed so far.",
    "batch": "Mean size of a mini-batch.",
    "posted": "States that members gave to their send queues so far.",
    "sent": "States sent so far.",
    "undelivered": "States for which no peer could be reached.",
    "received": "States received from peers so far.",
    "overwritten": "Received states that a newer one replaced before they were merged.",
    "merged": "Received states that were merged so far.",
    "refused": "Received states that were not merged, because they pointed elsewhere.",
    "stalled s": "Seconds in which members waited for room in their send queues.",
    "decided": "What policies decided before the round.",
    "note": "A remark of the algorithm on the round.",
    # Lanes, marks and other words of the page.
    "slot": "Number of a member's place in the job. A member that returns takes a free slot.",
    "computing": "The member computes on its examples.",
    "waiting": "The member has sent its sums and waits: for slower members, for messages, or for"
    " the driver.",
    "loading": "The member reads its examples, or prepares to take part.",
    "moving chunks": "The member sends or receives examples.",
    "gone": "The slot has no member.",
    "notice": "Announcement that a member will be taken away, some seconds ahead.",
    "chunk": "A block of consecutive examples: what is owned and moved as a unit.",
    "absent rule": "What happens to the examples of lost members: stand-ins (taylor, auto), ignore,"
    " reload, freeze or stall.",
    "estimate (~)": "The objective includes estimates for absent examples.",
    "driver": "The process that sends models, adds up sums and takes decisions.",
    "policy": "A rule that changes members, placement or settings between rounds.",
}
WORDS.update(
    (f"{role} {score}", meaning.format(f"{role} examples"))
    for role in ("train", "validation", "test")
    for score, meaning in _SCORES.items()
)
#: Words that every page uses.
_ALWAYS: Final = ("chunk", "driver")


def anchor(word: str) -> str:
    """Return the id of a word's entry in the legend."""
    return "word-" + "".join(c if c.isalnum() and c.isascii() else "-" for c in word)


def legend(words: Iterable[str]) -> list[tuple[str, str]]:
    """Return the given words with their meanings, as far as the legend has them."""
    used = {*words, *_ALWAYS}
    entries = sorted(WORDS.items(), key=lambda item: item[0].lower())
    return [(word, meaning) for word, meaning in entries if word in used]
