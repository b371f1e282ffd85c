"""The other ways to get a schedule, one file each, all with the signature `poet.schedule.Maker`."""

from poet.baselines.keep_all import keep_all
from poet.baselines.paging import paging
from poet.schedule import Maker

METHODS: dict[str, Maker] = {"keep-all": keep_all, "paging": paging}
