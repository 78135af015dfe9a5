# Which measured machines have an NVMe case, and from which profiles; no rule.

# Preferred, if its layers were measured.
NVME_SCALE = "7B"


def nvme_cases() -> dict[str, Path]:
    """Return the layer profile behind the case of each accelerator shown.

    Profiles lie in `{accelerator}/{scale}/layers.json`, wherever that folder is. A
    recorded machine whose rates were not recorded beside its layers has no case.
    """
    known = {
        (row.accelerator, row.scale): Path("results/profile")
        for row in SHEET
        if row.system == "lazytrain"
    }
    found = [
        folder.joinpath(*pair, "layers.json")
        for pair, folder in known.items()
        if pair[0] == ACCELERATOR
    ]
    if not IS_MEASURED:
        paths = map(Path, recorded_files("layers.json"))
        found = [
            path
            for path in paths
            if path.parts[-3:-1] in known and hardware_beside(path).is_file()
        ]
    # The preferred scale comes last and stays.
    found.sort(key=lambda path: (path.parts[-2] == NVME_SCALE, path))
    return {path.parts[-3]: path for path in found}


def nvme_layers(wildcards) -> str:
    """Return the layer profile of a case."""
    return nvme_cases()[wildcards.accelerator].as_posix()


def hardware_beside(layers: Path) -> Path:
    """Return where the rates of the machine of a layer profile lie."""
    return layers.parents[1] / "hardware.json"


def nvme_hardware(wildcards) -> str:
    """Return the hardware profile of a case."""
    return hardware_beside(nvme_cases()[wildcards.accelerator]).as_posix()


def nvme_outputs() -> list[str]:
    """Return the table and the figure of every case."""
    names = ("results/table7_{}.csv", "results/figures/figure4_{}.svg")
    return [name.format(case) for case in sorted(nvme_cases()) for name in names]


def nvme_scale(wildcards) -> str:
    """Return the scale of a case."""
    return nvme_cases()[wildcards.accelerator].parts[-2]


def nvme_limit(wildcards) -> str:
    """Return the option that takes the disk away from a case, or nothing."""
    return "--nvme-boundaries 0" if wildcards.disk == "without-disk" else ""
