/* All of the page can be read without this: here tables learn to sort, and the surface to turn. */
document.documentElement.classList.add("scripted");

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const keyOf = (row, i) => {
    const cell = row.cells[i], data = cell.querySelector("data");
    if (data) return Number(data.value);
    return cell.classList.contains("number") ? NaN : cell.textContent.trim();
  };
  heads.forEach((head, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const rising = head.getAttribute("aria-sort") !== "ascending", sign = rising ? 1 : -1;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const rows = [...body.rows].map(row => [keyOf(row, i), row]);
      rows.sort(([p], [q]) => {
        if (typeof p === "string") return sign * p.localeCompare(q, "en", { numeric: true });
        if (isNaN(p) || isNaN(q)) return isNaN(p) - isNaN(q);  // what is missing comes last
        return sign * (p - q);
      });
      body.append(...rows.map(([, row]) => row));
    };
  });
}

for (const box of document.querySelectorAll(".surface")) {
  const canvas = box.querySelector("canvas");
  const data = JSON.parse(box.querySelector("script").textContent);
  box.hidden = false;
  box.querySelector(".extent").textContent = describeSurface(data).text;
  showSurface(canvas, data, { wheel: false });
}

for (const block of document.querySelectorAll(".call")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.onclick = async () => {
    const code = block.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {  // a page opened from a folder may not write there: select it instead
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  block.prepend(button);
}

addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
