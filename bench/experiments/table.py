"""A table with notes, as Markdown, CSV or HTML."""

import csv
import dataclasses
import html
import io


@dataclasses.dataclass
class Table:
    title: str
    columns: list
    rows: list = dataclasses.field(default_factory=list)  # lists of strings; a row whose first cell begins with ** is bold
    notes: list = dataclasses.field(default_factory=list)

    def add(self, *cells):
        self.rows.append(["" if cell is None else str(cell) for cell in cells])

    def _numeric(self, column):
        values = [row[column].strip("*~") for row in self.rows if row[column]]
        return bool(values) and all(value[:1].isdigit() or value[:1] == "-" for value in values)

    def markdown(self):
        numeric = [self._numeric(i) for i in range(len(self.columns))]
        widths = [max(len(text) for text in [name, *(row[i] for row in self.rows)]) for i, name in enumerate(self.columns)]

        def line(cells):
            padded = [text.rjust(w) if right else text.ljust(w) for text, w, right in zip(cells, widths, numeric)]
            return "| " + " | ".join(padded) + " |"

        rule = "|" + "|".join("-" * (w + 1) + (":" if right else "-") for w, right in zip(widths, numeric)) + "|"
        lines = [f"### {self.title}", "", line(self.columns), rule, *(line(row) for row in self.rows)]
        return "\n".join(lines + ([""] if self.notes else []) + [f"- {note}" for note in self.notes]) + "\n"

    def csv(self):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([[cell.strip("*") for cell in row] for row in self.rows])
        return text.getvalue()

    def html(self):
        numeric = [self._numeric(i) for i in range(len(self.columns))]
        parts = [f"<h3>{html.escape(self.title)}</h3>", '<div class="wide"><table><thead><tr>']
        parts += [f"<th{' class=right' if right else ''}>{html.escape(name)}</th>" for name, right in zip(self.columns, numeric)]
        parts.append("</tr></thead><tbody>")
        for row in self.rows:
            kind = next((name for word, name in KINDS.items() for cell in row if cell.strip("*").startswith(word)), "")
            bold = " bold" if row and row[0].startswith("**") else ""
            cells = "".join(
                f"<td{' class=right' if right else ''}>{html.escape(cell.strip('*'))}</td>" for cell, right in zip(row, numeric)
            )
            parts.append(f'<tr class="{kind}{bold}">{cells}</tr>')
        parts.append("</tbody></table></div>")
        if self.notes:
            parts.append("<ul class=notes>" + "".join(f"<li>{html.escape(note)}</li>" for note in self.notes) + "</ul>")
        return "".join(parts)


# The CSS class of a row, by the origin of its figures.
KINDS = {"ran on": "ran", "replayed": "replayed", "predicted": "predicted", "published": "published"}
