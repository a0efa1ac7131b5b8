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
  layout: { topStart: "search", topEnd: null, bottomStart: null, bottomEnd: null },
};
// A table is made ready shortly before it is seen: many at once would delay the page.
const seen = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      new ITable(target, look);
    }
    document.documentElement.dataset.ready ??= Math.round(performance.now());
  },
  { rootMargin: "1000px" },
);
for (const table of document.querySelectorAll("table.board, table.ranks")) seen.observe(table);
