// Two answers compared word by word, by their longest common subsequence.
{
  const { element } = page;

  // lengths[i * (b.length + 1) + j]: length of the longest common subsequence of a[i:] and b[j:].
  const common = (a, b) => {
    const width = b.length + 1;
    const lengths = new Uint16Array((a.length + 1) * width);
    for (let i = a.length - 1; i >= 0; i--) {
      for (let j = b.length - 1; j >= 0; j--) {
        lengths[i * width + j] = a[i] === b[j]
          ? lengths[(i + 1) * width + j + 1] + 1
          : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
      }
    }
    return lengths;
  };
  const words = (text) => text.split(/\s+/).filter(Boolean);

  page.wordDiff = {
    // Share of the words of both that they do not have in common: 0 equal, 1 nothing in common.
    distance: (one, other) => {
      if (one === other) return 0;
      const [a, b] = [words(one), words(other)];
      const both = a.length + b.length;
      return both ? 1 - (2 * common(a, b)[0]) / both : 0;
    },
    // The text as nodes, with a mark around the words that the other text does not have.
    marked: (text, other) => {
      const [parts, a, b] = [text.match(/\S+\s*/g) ?? [], words(text), words(other)];
      const [width, lengths] = [b.length + 1, common(a, b)];
      const pieces = [];
      const add = (part, isNew) => {
        if (pieces.at(-1)?.isNew === isNew) pieces.at(-1).text += part;
        else pieces.push({ text: part, isNew });
      };
      let j = 0;
      a.forEach((word, i) => {
        while (j < b.length && word !== b[j] && lengths[i * width + j + 1] > lengths[(i + 1) * width + j]) j++;
        const shared = j < b.length && word === b[j];
        if (shared) j++;
        add(parts[i], !shared);
      });
      return pieces.flatMap((piece) => piece.isNew
        ? [element("mark", {}, piece.text.trimEnd()), piece.text.slice(piece.text.trimEnd().length)] : [piece.text]);
    },
  };
}
