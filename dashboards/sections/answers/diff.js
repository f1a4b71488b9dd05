// Two answers compared word by word, by their longest common subsequence of words.
{
  const { element } = page;

  const splitWords = (text) => text.split(/\s+/).filter(Boolean);

  /**
   * Compute the lengths of the longest common subsequences of all ends of two lists of words.
   *
   * @param {string[]} a
   * @param {string[]} b
   * @returns {function} `lengthFrom(i, j)`: how long the subsequence of `a[i:]` and `b[j:]` is.
   */
  const commonLengths = (a, b) => {
    const width = b.length + 1;
    const lengths = new Uint16Array((a.length + 1) * width); // [a.length + 1, b.length + 1], as one row
    for (let i = a.length - 1; i >= 0; i -= 1) {
      for (let j = b.length - 1; j >= 0; j -= 1) {
        const here = i * width + j;
        const nextOfA = here + width;
        const nextOfB = here + 1;
        const nextOfBoth = nextOfA + 1;
        lengths[here] = a[i] === b[j]
          ? lengths[nextOfBoth] + 1
          : Math.max(lengths[nextOfA], lengths[nextOfB]);
      }
    }
    return (i, j) => lengths[i * width + j];
  };

  // Says for each word of `a` whether it is in the longest common subsequence with `b`.
  const sharedWords = (a, b) => {
    const lengthFrom = commonLengths(a, b);
    let j = 0;
    return a.map((word, i) => {
      // Words of `b` are passed over as long as this loses less than passing over the word of `a`.
      while (j < b.length && word !== b[j] && lengthFrom(i, j + 1) > lengthFrom(i + 1, j)) j += 1;
      const isShared = j < b.length && word === b[j];
      if (isShared) j += 1;
      return isShared;
    });
  };

  // Joins neighbouring words that are both shared, or both not: [{ text, isShared }].
  const joinPieces = (wordsWithSpaces, isShared) => {
    const pieces = [];
    for (const [i, text] of wordsWithSpaces.entries()) {
      const last = pieces.at(-1);
      if (last?.isShared === isShared[i]) last.text += text;
      else pieces.push({ text, isShared: isShared[i] });
    }
    return pieces;
  };

  page.wordDiff = {
    /**
     * Return how different two texts are: 0 for the same words in the same order, 1 for none in
     * common.
     */
    distance(one, other) {
      if (one === other) return 0;
      const a = splitWords(one);
      const b = splitWords(other);
      const wordCount = a.length + b.length;
      if (wordCount === 0) return 0;
      return 1 - (2 * commonLengths(a, b)(0, 0)) / wordCount;
    },

    /** Return a text as a list of nodes, with a mark around words that `other` does not have. */
    marked(text, other) {
      const wordsWithSpaces = text.match(/\S+\s*/g) ?? [];
      const isShared = sharedWords(splitWords(text), splitWords(other));
      return joinPieces(wordsWithSpaces, isShared).flatMap((piece) => {
        if (piece.isShared) return [piece.text];
        // The space behind the last marked word is not marked.
        const words = piece.text.trimEnd();
        const space = piece.text.slice(words.length);
        return [element("mark", {}, words), space];
      });
    },
  };
}
