package faultfs_test

import (
	"fmt"

	"github.com/semel-dev/semel/test/faultfs"
)

// Unsynced data survives the death of the process. It does not survive a loss
// of power.
func ExampleFS_Survive() {
	disk := faultfs.New()
	file, err := disk.Create("log")
	if err != nil {
		panic(err)
	}
	write := func(text string, offset int64) {
		if _, err := file.WriteAt([]byte(text), offset); err != nil {
			panic(err)
		}
	}
	write("synced", 0)
	if err := file.Sync(); err != nil {
		panic(err)
	}
	if err := disk.SyncDir("."); err != nil {
		panic(err)
	}
	write(", and not", 6)

	for _, policy := range []faultfs.Policy{faultfs.OnlySynced, faultfs.Everything} {
		content, err := disk.Survive(policy, nil).ReadFile("log")
		fmt.Printf("%s: %s %v\n", policy, content, err)
	}
	// Output:
	// only synced: synced <nil>
	// everything: synced, and not <nil>
}
