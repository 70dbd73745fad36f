package usage

import "testing"

func TestFill(t *testing.T) {
	const text = "The first\nparagraph of a help.\n\nExit codes:\n  0  no problem was found\n  a-long-word-without-a-space"
	for width, want := range map[int]string{
		0:  text,
		80: "The first paragraph of a help.\n\nExit codes:\n  0  no problem was found\n  a-long-word-without-a-space",
		16: "The first\nparagraph of a\nhelp.\n\nExit codes:\n  0  no problem\n     was found\n  a-long-word-without-a-space",
	} {
		if got := Fill(text, width); got != want {
			t.Errorf("width %d:\n%s\nwant:\n%s", width, got, want)
		}
	}
}
