"use strict";
// Tables are sorted by a click on a column's title; numbers are saved as CSV. Nothing else needs a script.

const numbers = JSON.parse(document.getElementById("numbers").textContent);

function valueOf(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  const text = cell.textContent.trim();
  return text === "–" ? null : text;
}

function sortBy(table, header, column) {
  const ascending = header.getAttribute("aria-sort") !== "ascending";
  for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [valueOf(row, column), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // what is missing stays at the end
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    return ascending ? order : -order;
  });
  for (const [, row] of rows) body.append(row);
}

for (const table of document.querySelectorAll("table.sortable")) {
  Array.from(table.tHead.rows[0].cells).forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => sortBy(table, header, column));
  });
}

function quoted(value) {
  let text = value === null ? "" : String(value);
  if (typeof value === "string" && /^[=+@\t\r-]/.test(text)) text = `'${text}`; // a spreadsheet would run it
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function asCsv([header, blocks]) {
  const lines = [header];
  for (const [words, columns] of blocks) {
    for (let row = 0; row < columns[0].length; row++) lines.push([...words, ...columns.map((column) => column[row])]);
  }
  return lines.map((line) => line.map(quoted).join(",") + "\n").join("");
}

for (const button of document.querySelectorAll("button.download")) {
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([asCsv(numbers[button.dataset.name])], { type: "text/csv" }));
    link.download = button.dataset.name + ".csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}

addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
