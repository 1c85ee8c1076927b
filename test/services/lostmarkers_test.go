package services

import (
	"reflect"
	"testing"
)

func TestLostMarkersAreReadFromTheLog(t *testing.T) {
	t.Parallel()
	log := "[2026-11-22 05:40:13,101] INFO [Transaction Marker Channel Manager 1]: Couldn't find leader endpoint for partitions Set(once-out-1, __consumer_offsets-3)" +
		" while trying to send transaction markers for once/once-0-1, these partitions are likely deleted already and hence can be skipped (kafka.coordinator.transaction.TransactionMarkerChannelManager)\n" +
		"[2026-11-22 05:40:13,102] INFO another line for partitions Set(in-1)\n" +
		"[2026-11-22 05:40:14,001] INFO [Transaction Marker Channel Manager 1]: Couldn't find leader endpoint for partitions HashSet(out-0)" +
		" while trying to send transaction markers for b, these partitions are likely deleted already and hence can be skipped\n"
	want := []LostMarker{{"once/once-0-1", []string{"once-out-1", "__consumer_offsets-3"}}, {"b", []string{"out-0"}}}
	if got := lostMarkers([]byte(log)); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := lostMarkers(nil); len(got) > 0 {
		t.Errorf("%+v", got)
	}
}
