package serve

import (
	"os"
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// The page about metrics describes all of the server's.
func TestThePageDescribesTheMetrics(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../observe/README.md")
	if err != nil {
		t.Fatal(err)
	}
	descriptions := make(chan *prometheus.Desc, 100)
	newMetrics().Describe(descriptions)
	close(descriptions)
	n := 0
	for description := range descriptions {
		found := regexp.MustCompile(`fqName: "([^"]+)", help: "([^"]+)"`).FindStringSubmatch(description.String())
		if row := regexp.MustCompile("(?m)^- `" + found[1] + "` \\([a-z]+(; [a-z, ]+)?\\): " + regexp.QuoteMeta(found[2]) + "$"); !row.Match(page) {
			t.Errorf("the page does not describe %s as %q", found[1], found[2])
		}
		n++
	}
	if n < 5 {
		t.Errorf("%d metrics", n)
	}
}

func TestProvenanceReadsWhatItWrote(t *testing.T) {
	t.Parallel()
	for _, p := range []provenance{
		{}, {origin: "cron"}, {holder: "w"}, {requestID: "r"}, {"cron", "w", "r"}, {"a; b", "w", ""}, {"", "w", "r"}, {"a; holder b", "c", ""},
	} {
		if got := provenanceOf(p.text()); got != p {
			t.Errorf("%+v becomes %q and then %+v", p, p.text(), got)
		}
	}
	long := provenance{string(make([]byte, 250)), "worker", "request"}
	if got := provenanceOf(long.text()); got.origin != long.origin {
		t.Errorf("%+v", got)
	}
}
