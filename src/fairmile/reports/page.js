for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, body = head.closest("table").tBodies[0];
    const up = head.getAttribute("aria-sort") !== "ascending", at = head.cellIndex;
    const key = (row) => row.cells[at].dataset.sort ?? row.cells[at].textContent;
    const rows = [...body.rows].sort((a, b) => {
      const x = key(a), y = key(b), difference = x - y;
      return (Number.isNaN(difference) ? x.localeCompare(y, undefined, { numeric: true }) : difference) * (up ? 1 : -1);
    });
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows);
  });
}
