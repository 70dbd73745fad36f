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
	picture := Terminal("$ a < b\n  PROBLEM \"c\"\n\n" + long + "rest\n")
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
	want := []string{"30 command: $ a < b", `49 problem:   PROBLEM "c"`, "87 : " + long, "106 : rest"}
	lab.Same(t, want, got, "")
}
