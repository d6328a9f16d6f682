"""The words that planted facts are made of.

None of them occurs in the filler (`filler`), so a fact stands in a prompt exactly once and nothing
around it can be taken for it. No word is in two of the lists.
"""

from __future__ import annotations

# fmt: off
CREATURES = (
    "adder", "badger", "beaver", "bison", "bittern", "bobcat", "buzzard", "caribou", "condor",
    "cormorant", "coyote", "crane", "curlew", "dolphin", "egret", "falcon", "ferret", "gannet",
    "gecko", "gibbon", "harrier", "heron", "ibex", "jackal", "jaguar", "kestrel", "lemur",
    "lynx", "magpie", "marten", "merlin", "moose", "narwhal", "ocelot", "oriole", "osprey",
    "otter", "pelican", "petrel", "puffin", "rabbit", "raven", "salmon", "seal", "stoat",
    "tapir", "turtle", "walrus", "weasel", "wombat",
)
MINERALS = (
    "agate", "amber", "basalt", "beryl", "borax", "cobalt", "coral", "flint", "garnet",
    "gneiss", "granite", "gypsum", "jade", "jasper", "marble", "mica", "nickel", "obsidian",
    "onyx", "opal", "pearl", "pumice", "pyrite", "quartz", "ruby", "slate", "topaz", "zinc",
)
PLANTS = (
    "alder", "almond", "aspen", "birch", "cedar", "chestnut", "clover", "cypress", "fennel",
    "fern", "hazel", "heather", "hemlock", "holly", "ivy", "juniper", "larch", "laurel",
    "lilac", "linden", "maple", "mulberry", "nettle", "olive", "poplar", "rowan", "sorrel",
    "spruce", "sumac", "thistle", "willow", "yarrow",
)
COMPONENTS = (
    "allocator", "archiver", "broker", "compiler", "debouncer", "decoder", "dispatcher",
    "encoder", "flusher", "formatter", "gateway", "indexer", "interpreter", "loader",
    "mailer", "planner", "proxy", "renderer", "resolver", "sampler", "scheduler",
    "serializer", "tokenizer", "watcher",
)
PEOPLE = (
    "Abena", "Anders", "Bao", "Carmen", "Darius", "Edith", "Farid", "Greta", "Hana", "Igor",
    "Ines", "Jonas", "Kavya", "Lars", "Leila", "Mateo", "Mirja", "Nadia", "Olu", "Petra",
    "Priya", "Ravi", "Rosa", "Sanna", "Tomas", "Ulla", "Viktor", "Wen", "Yara", "Zoltan",
)
# First part of a planted function's name; the second is a creature, mineral or plant.
VERBS = (
    "blend", "bump", "carve", "clamp", "crush", "dent", "drain", "fold", "forge", "grind",
    "hoist", "knit", "melt", "pluck", "press", "rinse", "shave", "skim", "smelt", "stack",
    "stir", "twist", "weave", "weld",
)
# fmt: on
