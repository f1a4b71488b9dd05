// A trade-off panel by the keyboard: arrow keys move from point to point, Enter or Space opens the
// card of a point, and Escape leaves it.
{
  // By key: lines to move down, points to move to the right.
  const MOVES = {
    ArrowRight: { down: 0, right: 1 },
    ArrowLeft: { down: 0, right: -1 },
    ArrowDown: { down: 1, right: 0 },
    ArrowUp: { down: -1, right: 0 },
  };

  // The lines that are shown: { trace, curve, points }. `curve` is the index of the trace in Plotly's
  // data, and `points` are the indices of its points that belong to a run. The first point of a line
  // is the start model, which does not.
  const shownLines = (node) => {
    const lines = [];
    for (const [curve, trace] of node.data.entries()) {
      const role = trace.meta?.role;
      const hasPoints = role === "trajectory" || role === "reference";
      if (!hasPoints || trace.visible === false) continue;
      const points = [];
      for (const [index, [, run]] of (trace.customdata ?? []).entries()) {
        if (run) points.push(index);
      }
      if (points.length) lines.push({ trace, curve, points });
    }
    return lines;
  };

  // Texts at points are markup for Plotly, such as "<b>npo</b><br>seed 1".
  const plainText = (markup) => {
    const withoutBreaks = markup.replaceAll("<br>", "; ");
    return new DOMParser().parseFromString(withoutBreaks, "text/html").body.textContent;
  };

  /** Let the keyboard move over the points of a plot. */
  page.addKeyboard = (plot) => {
    const { node } = plot;
    let position = null; // { line, point }: indices in `shownLines` and in the line's points

    // The present point. Filters may have hidden its line (then it is null), or may have left the line
    // fewer points (then it is the last of them).
    const currentPoint = () => {
      const line = position === null ? undefined : shownLines(node)[position.line];
      if (!line) return null;
      const place = Math.min(position.point, line.points.length - 1);
      return { trace: line.trace, curve: line.curve, index: line.points[place] };
    };

    // Shows a point as if the pointer were on it, and says its text to screen readers.
    const announce = () => {
      const { trace, curve, index } = currentPoint();
      Plotly.Fx.hover(node, [{ curveNumber: curve, pointNumber: index }]);
      page.byId("point-text").textContent = plainText(trace.hovertext[index]);
    };

    const move = ({ down, right }) => {
      const lines = shownLines(node);
      if (lines.length === 0) return;
      if (position === null || !lines[position.line]) {
        position = { line: 0, point: 0 }; // the first key only enters the plot
      } else {
        // Behind the last line comes the first one again.
        const line = (position.line + down + lines.length) % lines.length;
        position = { line, point: position.point + right };
      }
      const lastPoint = lines[position.line].points.length - 1;
      position.point = Math.max(0, Math.min(lastPoint, position.point));
      announce();
    };

    const openCard = ({ trace, index }) => {
      const [epoch, run] = trace.customdata[index];
      page.select(run, epoch, page.filters.seed !== null);
    };

    // Does what a key stands for. Returns whether it stands for anything.
    const handleKey = (key) => {
      if (key in MOVES) {
        move(MOVES[key]);
        return true;
      }
      if (key === "Enter" || key === " ") {
        const point = currentPoint();
        if (point === null) return false;
        openCard(point);
        return true;
      }
      if (key === "Escape") {
        Plotly.Fx.unhover(node);
        return true;
      }
      return false;
    };

    node.addEventListener("keydown", (event) => {
      const isShortcut = event.ctrlKey || event.metaKey || event.altKey;
      if (isShortcut) return; // of the browser
      if (handleKey(event.key)) event.preventDefault();
    });
    node.addEventListener("blur", () => Plotly.Fx.unhover(node));
  };
}
