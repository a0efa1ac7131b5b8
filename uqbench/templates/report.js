// DataTables sorts and filters; without it, or without scripts, the tables are read as they stand.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark", dark.matches);
dark.addEventListener("change", follow);
follow();
const packed = atob(document.getElementById("datatables").textContent);
const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
const url = URL.createObjectURL(new Blob([bytes], { type: "text/javascript" }));
const { ITable } = await import(url);
URL.revokeObjectURL(url);
const look = {
  paging: false,
  info: false,
  autoWidth: false,
  order: [],
  language: { search: "Filter" },
};
const layout = { topStart: null, topEnd: null, bottomStart: null, bottomEnd: null };
const filtered = { ...layout, topStart: "search" };
const FILTERED_ROWS = 8; // fewer are seen at a glance
// One table after the other, and the page in between: all at once would delay it.
for (const table of document.querySelectorAll("table.board, table.ranks")) {
  const isLong = table.tBodies[0].rows.length >= FILTERED_ROWS;
  new ITable(table, { ...look, layout: isLong ? filtered : layout });
  document.documentElement.dataset.ready ??= Math.round(performance.now());
  await new Promise((done) => setTimeout(done));
}
