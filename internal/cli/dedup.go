package cli

import "github.com/spf13/cobra"

// newDedupCommand builds the verb dedup.
func newDedupCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "dedup [FILE...]",
		Short:   "Keep the first line of each key",
		Example: "semel dedup --key .event_id events.jsonl > clean.jsonl",
		RunE: func(cmd *cobra.Command, args []string) error {
			return usagef("dedup is not part of this build")
		},
	}
}
