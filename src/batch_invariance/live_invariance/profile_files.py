"""The files that a profile ships inside the package, from a folder, a wheel or a zip alike."""

from __future__ import annotations

from importlib import resources

from batch_invariance.errors import UsageError

PROFILES = "batch_invariance.profiles"
EXAMPLE_REGISTRY = "models.example.toml"


def profile_names() -> tuple[str, ...]:
    """Every profile that is installed, sorted: the folders with an example registry."""
    folder = resources.files(PROFILES)
    return tuple(
        sorted(
            entry.name
            for entry in folder.iterdir()
            if entry.is_dir() and (entry / EXAMPLE_REGISTRY).is_file()
        )
    )


def check_profile(profile: str) -> None:
    """Raises UsageError, naming the profiles that there are, unless `profile` is one of them."""
    names = profile_names()
    if profile not in names:
        raise UsageError(f"there is no profile {profile!r}; installed: {', '.join(names)}")


def example_registry(profile: str) -> bytes:
    """The bytes of the profile's example registry. Raises UsageError for an unknown profile."""
    check_profile(profile)
    return (resources.files(PROFILES) / profile / EXAMPLE_REGISTRY).read_bytes()
