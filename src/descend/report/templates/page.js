"use strict";

/** The pictures of a section: every slider moves all of them. */
for (const root of document.querySelectorAll(".frames")) {
  const { panels, noise } = JSON.parse(root.querySelector("script").textContent);
  const sliders = [...root.querySelectorAll("[data-control]")];
  const show = () => {
    const at = { noise: 0, layer: 0, clip: 0 };
    for (const slider of sliders) {
      at[slider.dataset.control] = Number(slider.value);
      const level = String(JSON.parse(slider.dataset.levels)[slider.value]);
      slider.parentElement.querySelector("output").textContent = level;
      slider.setAttribute("aria-valuetext", level);
    }
    const where = { noise: `noise γ = ${noise[at.noise]}`, layer: `layer ${at.layer}`, clip: `clip ${at.clip + 1}` };
    root.querySelectorAll(".frame").forEach((frame, place) => {
      const { label, axes, images, rmse } = panels[place];
      const pick = (lists) => axes.reduce((list, axis) => list[Math.min(at[axis], list.length - 1)], lists);
      const error = rmse ? `RMSE ${pick(rmse).toFixed(1)}` : "the goal";
      const image = frame.querySelector("img");
      image.src = pick(images);
      image.alt = [label, ...axes.map((axis) => where[axis]), error].join(", ");
      frame.querySelector(".rmse").textContent = error;
    });
  };
  for (const slider of sliders) slider.addEventListener("input", show);
  show();
}

// On paper everything is unfolded.
let unfolded = [];
addEventListener("beforeprint", () => {
  unfolded = [...document.querySelectorAll("details:not([open])")];
  for (const part of unfolded) part.open = true;
});
addEventListener("afterprint", () => {
  for (const part of unfolded) part.open = false;
});
document.documentElement.dataset.ready = "";
