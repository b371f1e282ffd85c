"""Resuming: whether a folder's checkpoints are of the run that is asked for, and its plan.

What a run is: a model, an optimizer with its learning rates, a seed. Another RAM budget, device or
number of steps is the same run: any plan that does not stream gives the same bits. Whether tensors
fit is `saving`'s question.
"""

from collections.abc import Callable, Sequence

import msgspec

from poet.errors import PoetError
from poet.referee.replay import check
from poet.runtime.state.checkpoints import Origin
from poet.runtime.state.generations import PLAN, Found, Generations, newest
from poet.values.files import read_json
from poet.values.plan import Plan


def go_on_from(
    folder: Generations, resume: bool, origin: Origin, say: Callable[[str], None]
) -> Found | None:
    """The checkpoint to go on from; None where the run starts from the beginning."""
    if not folder.steps:
        if resume:
            say(f"there is no checkpoint in {folder.folder}: starting from the beginning")
        return None
    if not resume:
        raise PoetError(
            f"{folder.folder} has checkpoints of a run, up to step {folder.steps[-1]:,}: go on "
            "from there with resume=True, or give another folder"
        )
    found = newest(folder.folder, say)
    before = found.about.origin
    for what, old, new, hint in (
        ("model", before.model, origin.model, "{}"),
        ("seed", before.seed, origin.seed, 'seed="{}"'),
    ):
        if old != new:
            raise PoetError(
                f"the run in {folder.folder} has the {what} {old}; here it is {new}. Give "
                f"{hint.format(old)}, or another folder"
            )
    return found


def check_data(found: Found, has_own_data: bool) -> None:
    """Refuse to go on with batches from elsewhere."""
    had = found.about.origin.data_digest is not None
    if found.about.steps and had != has_own_data:
        was, now = ("data of its own", "none") if had else ("none", "data of its own")
        raise PoetError(
            f"the run in {found.path.parent} was trained on other batches: the model's file gave "
            f"{was}, and gives {now} now. Begin again in another folder"
        )


def check_rates(found: Found, rates: Sequence[float]) -> None:
    """Refuse to go on with other learning rates than before."""
    before = found.about.learning_rates
    if before != tuple(rates):
        texts = [", ".join(f"{rate:g}" for rate in each) for each in (before, rates)]
        raise PoetError(
            f"the checkpoint {found.path} was trained with the learning rate {texts[0]}; here it "
            f"is {texts[1]}. Give the same optimizer=, or another folder"
        )


def kept_plan(found: Found | None, origin: Origin) -> Plan | None:
    """The plan of the run so far, if it was made for the same question and is still valid."""
    if found is None:
        return None
    before = msgspec.structs.replace(found.about.origin, data_position=None, data_digest=None)
    if before != origin:
        return None
    try:
        plan = read_json(found.path.parent / PLAN, Plan)
    except PoetError:
        return None
    report = check(plan)
    return plan if report.valid and report.claims_match else None
