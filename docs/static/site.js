// What the theme leaves out for people who use a keyboard or a screen reader.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
  for (const link of document.querySelectorAll(".sphx-glr-thumbcontainer a")) {
    link.setAttribute("aria-label", link.textContent);
  }
  for (const header of document.querySelectorAll("th")) {
    if (!header.textContent.trim()) header.replaceWith(document.createElement("td"));
  }
  const reach = () => {
    for (const box of document.querySelectorAll("article pre, article table.docutils")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    }
  };
  reach();
  window.addEventListener("resize", reach);
});
