"use strict";
// Tables sort by a click on a head: in one direction, in the other, and as they were.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, index) => {
    const numbers = head.classList.contains("n");
    const cycle = numbers ? ["descending", "ascending", "none"] : ["ascending", "descending", "none"];
    const key = (row) => {
      const text = row.cells[index].dataset.value ?? "";
      return numbers ? parseFloat(text) : text;
    };
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const next = cycle[(cycle.indexOf(head.getAttribute("aria-sort")) + 1) % 3];
      for (const other of heads) other.setAttribute("aria-sort", other === head ? next : "none");
      const sign = next === "descending" ? -1 : 1;
      const missing = (value) => value === "" || Number.isNaN(value);
      const rows = [...original];
      if (next !== "none") {
        rows.sort((one, other) => {
          const a = key(one), b = key(other);
          if (missing(a) || missing(b)) return missing(a) - missing(b);
          return sign * (numbers ? a - b : a.localeCompare(b));
        });
      }
      body.append(...rows);
    });
  });
}
