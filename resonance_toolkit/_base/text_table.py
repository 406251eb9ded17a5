from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], *, separator: str = "  ") -> str:
    """Align the columns of a table, for a `repr` or a terminal.

    Examples:
        >>> print(text_table([("layer", "width"), ("blocks.0", "64")]))
        layer     width
        blocks.0  64
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = (
        separator.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
