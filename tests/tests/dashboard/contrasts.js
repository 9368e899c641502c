// The texts of the page whose contrast to their background is below 4.5, with their contrast.
(() => {
  const channels = color => color.match(/[\d.]+/g).map(Number);
  const luminance = color => {
    const [r, g, b] = channels(color).map(value => value / 255).map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = node => {
    for (let at = node; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if ((channels(color)[3] ?? 1) > 0) return color;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? "rgb(0, 0, 0)" : "rgb(255, 255, 255)";
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || node.closest("dialog, title, script, :disabled, datalist")) continue;
    const style = getComputedStyle(node);
    const color = node.closest("svg") ? style.fill : style.color;
    const [a, b] = [luminance(color), luminance(background(node))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) faint.push(`${walker.currentNode.textContent.trim()}: ${contrast.toFixed(2)}`);
  }
  return faint;
})()
