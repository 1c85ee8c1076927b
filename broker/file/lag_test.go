package file_test

import (
	"context"
	"testing"

	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/pipeline"
)

func (b *bundle) behind(want int64) {
	b.Helper()
	list, err := b.Lag(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	if len(list) != 1 || list[0].Bytes != want || list[0].Messages != pipeline.UnknownLag {
		b.Errorf("behind: %+v, want %d bytes", list, want)
	}
}

func TestLagIsTheBytesThatAreNotSettled(t *testing.T) {
	t.Parallel()
	b := setup(t, file.SourceOptions{})
	b.write("1", "aa\nbb\n")
	b.write("2", "cc\ndd\n")
	b.open("1", "2")
	b.behind(0)
	first, err := b.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.behind(12)
	if err := b.Ack(t.Context(), first[:1]); err != nil {
		t.Fatal(err)
	}
	b.behind(9)
	second, err := b.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.behind(9)
	if err := b.Ack(t.Context(), second[1:]); err != nil { // a line before it waits for its next try
		t.Fatal(err)
	}
	b.behind(6)
	if err := b.Ack(t.Context(), append(first[1:], second[0])); err != nil {
		t.Fatal(err)
	}
	b.behind(0)
	b.close()
	b.open("1", "2")
	_, _ = b.Read(t.Context()) // nothing is left, which is an error
	b.behind(0)
	b.close()
}

func TestLagOfFilesThatAreFollowed(t *testing.T) {
	t.Parallel()
	b := setup(t, file.SourceOptions{Follow: true, FromEnd: true})
	b.write("log", "old\nold\n")
	b.open("log")
	defer b.close()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Read(over); err == nil { // it looks, and does not wait
		t.Fatal("something was read")
	}
	b.behind(0)
	b.add("log", "new\n")
	b.behind(4)
}
