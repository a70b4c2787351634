"""Samplers that do not come with the library, each in a few lines with its source, checked and run.

    python examples/gallery/run.py                 # all of them, four minutes
    python examples/gallery/run.py magnetic mixture --quick

The table says what the certificate claims, the order of the step, and the largest error of a mean or variance of the
draws against a quadrature of the law, in standard deviations, with the error of the step in it. Time is that of the
processor. What came out stands in results.md.
"""

import argparse
import difflib
import sys

import adaptive
import composed
import events
import kinetic
import latents
import learned
import operators
import overdamped
import proposals
import thermostats

ROOMS = (overdamped, kinetic, thermostats, latents, adaptive, operators, composed, learned, proposals, events)
GALLERY = {exhibit.name: exhibit for room in ROOMS for exhibit in room.GALLERY}


def main(arguments: list[str] | None = None) -> int:
    """Print the table; the status is 1 where a law is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="samplers, by default all")
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in GALLERY:
            near = difflib.get_close_matches(name, GALLERY, n=3, cutoff=0.3)
            parser.error(f"there is no sampler {name!r}; near are {', '.join(near) or ', '.join(GALLERY)}")
    rows = []
    print(f"{'sampler':28} {'claim':30} {'order':>5}   error          time")
    for name in options.names or GALLERY:
        rows.append(GALLERY[name].examined(quick=options.quick))
        print(rows[-1], flush=True)
    wrong = [row.name for row in rows if not row.agrees]
    seconds = sum(row.seconds for row in rows)
    print(f"{len(rows)} samplers, {len(wrong)} wrong, {seconds:.0f} s of the processor")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
