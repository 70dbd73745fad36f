package page

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestTerminal(t *testing.T) {
	long := strings.Repeat("ä", columns)
	picture := Terminal("$ a < b\n  \x1b[33mPROBLEM \"c\"\x1b[0m d\n\n" + long + "rest\n  " + long[8:] +
		" \x1b[31mlast\x1b[0m\n")
	var got []string
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in:\n%s", err, picture)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "text" {
			var text struct {
				Class string `xml:"class,attr"`
				Y     string `xml:"y,attr"`
				Text  string `xml:",chardata"`
			}
			lab.Must(t, d.DecodeElement(&text, &e))
			got = append(got, text.Y+" "+text.Class+": "+text.Text)
		}
	}
	want := []string{
		"30 bold: $ a < b", "49 :   ", `49 warn: PROBLEM "c"`, "49 :  d", "87 : " + long, "106 :     rest",
		"125 :   " + long[8:], "144 :       ", "144 bad: last",
	}
	lab.Same(t, want, got, "")
}
