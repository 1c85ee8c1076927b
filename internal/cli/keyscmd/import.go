package keyscmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/dedup"
	"github.com/semel-dev/semel/internal/jsonid"
	"github.com/semel-dev/semel/internal/schema"
)

const (
	// importBatch is the number of keys that become durable together.
	importBatch = 1024
	// maxImportLine is the maximum length of a line: the longest scope and id with
	// every byte escaped, plus some members.
	maxImportLine = 6*2*semel.MaxKeyBytes + 64<<10
	// maxImportErrors is the maximum number of keys reported per batch.
	maxImportErrors = 5
)

type importReport struct {
	Read      int64 `json:"read"`
	Imported  int64 `json:"imported"`
	Duplicate int64 `json:"duplicate"`
	Expired   int64 `json:"expired"`
}

// importer writes keys from JSON lines to a store.
type importer struct {
	*keysFlags
	store   semel.Store
	window  time.Duration
	now     time.Time
	ids     jsonid.Parser
	members []importMember
	owner   semel.Owner // owner of the last claim; every claim has its own nonce
	batch   []semel.ClaimRequest
	report  importReport
	read    atomic.Int64 // report.Read, for the progress line
}

func newKeysImportCommand(k *keysFlags) *cobra.Command {
	var (
		window  time.Duration
		keepIDs bool
	)
	cmd := &cobra.Command{
		Use:   "import [FILE...] --store DIR",
		Short: "Read keys from JSON lines and mark them done",
		Example: `semel keys import keys.jsonl --store ./backfilled --keep-ids
echo '{"id":"order-42"}' | semel keys import --store ./backfilled --keep-ids --scope payments --window 30d
semel keys export --store ./ledger --state done | semel keys import --store ./copy --keep-ids`,
		Long: `Marks keys as done whose messages were processed before you started with Semel.
Their messages are then duplicates. Reads JSON lines from files or standard
input, in the format of keys export:

  {"id": "order-42"}
  {"scope": "payments", "id": ["order-42", 7], "window": "30d"}
  {"scope": "payments", "id": "order-43", "expires": "2030-01-01T00:00:00Z"}

An id is a string, a number, true, false, or an array of these for a composite
key. Flags give the defaults for "scope", "window" and "expires". Existing keys
stay as they are, and expired keys are skipped. If there is no embedded store in
the directory, import creates one.

Keys become durable in batches. After an error or an interruption, importing the
same lines again is safe.`,
		RunE: k.Checked(func(cmd *cobra.Command, names []string, wrong term.Problems) error {
			term.RefuseEmpty(cmd, "scope", &wrong)
			k.checkImport(keepIDs, &wrong)
			if len(names) == 0 {
				names = []string{"-"}
			}
			inputs := openInputs(names, k.Stdin, &wrong)
			defer func() {
				for _, input := range inputs {
					_ = input.close() // it was only read, so nothing can be lost
				}
			}()
			if err := wrong.Err(); err != nil {
				return err
			}
			if keepIDs {
				k.KeepIDs = true
			}
			return k.importAll(cmd.Context(), inputs, window)
		}),
	}
	cmd.Flags().StringVar(&k.scope, "scope", keyrecord.DefaultScope, "`NAME` of the key space, for lines without one")
	term.WindowVar(cmd.Flags(), &window, "window", "forever", "how long keys are remembered from now, for lines without window and expires")
	cmd.Flags().BoolVar(&keepIDs, "keep-ids", false, "keep scope and id readable, at the cost of their length for each key")
	term.CompleteValues(cmd, "scope")
	term.CompleteValues(cmd, "window", "forever")
	return cmd
}

// checkImport validates the target of the keys. Only import may create a store.
func (k *keysFlags) checkImport(keepIDs bool, p *term.Problems) {
	if !k.Find(p) {
		return
	}
	about := k.Found.Spec.About()
	if about.NoRecords != "" {
		p.Addf("%s is of the kind %s: imported keys would not be kept", k.Shown(), k.Found.Spec.Kind())
	}
	if about.Directory != "" {
		if _, err := about.Exists(); err != nil {
			p.Addf("--store %s: %s", about.Directory, term.FileReason(err))
		}
	}
	if stack, ok := k.Conf.LayerOf(k.Found.Name); ok && about.NoRecords == "" {
		p.Addf("%s is a layer of %s, which would drop messages on that record alone: write --store-name %s", k.Shown(), stack.Name, stack.Name)
	}
	if keepIDs && k.File != "" {
		p.Addf("--keep-ids is for --store: in a configuration the store says keep_ids: true")
	}
}

func (k *keysFlags) importAll(ctx context.Context, inputs []namedInput, window time.Duration) error {
	return k.WithStore(ctx, func(store semel.Store) error {
		im := &importer{keysFlags: k, store: store, window: window, now: time.Now(), ids: jsonid.NewParser(), members: importMembers(), owner: semel.Owner{Name: "keys import by " + keyrecord.Actor(), Nonce: rand.Uint64()}}
		stop := k.StartProgress(func() term.Progress {
			return term.Progress{Done: im.read.Load(), Unit: "keys", Share: -1}
		})
		err := im.readAll(ctx, inputs)
		stop()
		if err != nil {
			return fmt.Errorf("%w; %s keys are imported: importing the same lines again is safe", err, term.FormatCount(im.report.Imported))
		}
		if k.JSON {
			return k.PrintJSON(im.report)
		}
		r := &im.report
		k.Note("read %s  imported %s  already there %s  expired %s",
			term.FormatCount(r.Read), term.FormatCount(r.Imported), term.FormatCount(r.Duplicate), term.FormatCount(r.Expired))
		return nil
	})
}

// namedInput is an input with its name for messages.
type namedInput struct {
	name   string
	reader io.Reader // an *os.File stays one, so that a read from it can be interrupted
	close  func() error
}

// openInputs opens all inputs before the first one is read, so that a wrong name
// is reported before anything is done. The caller must close them.
func openInputs(names []string, stdin io.Reader, wrong *term.Problems) (inputs []namedInput) {
	for _, name := range names {
		switch name {
		case "":
			wrong.Addf("%s", term.EmptyInput)
			continue
		case "-":
			inputs = append(inputs, namedInput{"standard input", stdin, func() error { return nil }})
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			wrong.Addf("%s: %s", name, term.FileReason(err))
			continue
		}
		inputs = append(inputs, namedInput{name, file, file.Close})
	}
	return inputs
}

// readAll imports every line. Lines read before an error are imported.
func (im *importer) readAll(ctx context.Context, inputs []namedInput) error {
	for _, input := range inputs {
		lines := bufio.NewScanner(dedup.Interruptible(ctx, input.reader))
		lines.Buffer(make([]byte, 64<<10), maxImportLine)
		number := 0
		for lines.Scan() && lines.Err() == nil { // after an error, this is an incomplete line
			number++
			err := im.add(ctx, lines.Bytes())
			if err != nil {
				return im.stopped(ctx, input.name, number, err)
			}
		}
		if err := lines.Err(); err != nil {
			return im.stopped(ctx, input.name, number+1, err)
		}
	}
	return im.flush(ctx)
}

// stopped imports the lines read before an error, including the end of ctx, and
// says where the error is.
func (im *importer) stopped(ctx context.Context, name string, line int, err error) error {
	return errors.Join(fmt.Errorf("%s:%d: %w", name, line, err), im.flush(context.WithoutCancel(ctx)))
}

// add reads one line and imports the batch when it is full.
func (im *importer) add(ctx context.Context, text []byte) error {
	if len(strings.TrimSpace(string(text))) == 0 {
		return nil
	}
	line, err := parseImportLine(text, im.members)
	if err != nil {
		return err
	}
	request, err := im.request(line)
	if err != nil {
		return err
	}
	im.owner.Nonce++
	request.Owner = im.owner
	im.report.Read++
	im.read.Store(im.report.Read)
	if request.Window <= 0 {
		im.report.Expired++
		return nil
	}
	im.batch = append(im.batch, request)
	if len(im.batch) < importBatch {
		return nil
	}
	return im.flush(ctx)
}

// request turns a line into a claim that marks its key done. A window of 0 or
// less means that the key has expired.
func (im *importer) request(line importLine) (semel.ClaimRequest, error) {
	origin := line.text("origin")
	request := semel.ClaimRequest{Done: true, Window: im.window, Origin: origin[max(0, len(origin)-semel.MaxOriginBytes):]}
	if state := line.text("state"); state != "" && state != semel.Done.String() {
		return request, fmt.Errorf("the key is %s: only keys that are done can be imported (keys export --state done)", state)
	}
	window, expires := line.text("window"), line.text("expires")
	var err error
	if request.Key, err = im.key(line); err != nil {
		return request, err
	}
	switch {
	case window != "" && expires != "":
		return request, errors.New("window and expires exclude each other")
	case window != "":
		if request.Window, err = schema.ParseWindow(window); err != nil {
			return request, fmt.Errorf("window %q: %w", window, err)
		}
	case expires == "forever":
		request.Window = semel.Forever
	case expires != "":
		end, err := time.Parse(time.RFC3339, expires)
		if err != nil {
			return request, fmt.Errorf("expires %q: write it like 2030-01-01T00:00:00Z, or forever", expires)
		}
		request.Window = end.Sub(im.now)
	}
	return request, nil
}

func (im *importer) key(line importLine) (semel.Key, error) {
	key := semel.Key{Scope: im.scope}
	scope, id := line["scope"], line["id"]
	scopeBytes, idBytes := line.text("scope_base64"), line.text("id_base64")
	var err error
	switch {
	case scope != nil && scopeBytes != "":
		return key, errors.New("scope and scope_base64 exclude each other")
	case scope != nil:
		if key.Scope, err = im.ids.Scope(scope); err != nil {
			return key, err
		}
	case scopeBytes != "":
		if key.Scope, err = jsonid.ParseBase64(scopeBytes); err != nil {
			return key, fmt.Errorf("scope_base64: %w", err)
		}
	}
	switch {
	case id != nil && idBytes != "":
		return key, errors.New("id and id_base64 exclude each other")
	case id != nil:
		if key.ID, err = im.ids.ID(id); err != nil {
			return key, fmt.Errorf("id: %w", err)
		}
	case idBytes != "":
		if key.ID, err = jsonid.ParseBase64(idBytes); err != nil {
			return key, fmt.Errorf("id_base64: %w", err)
		}
	case line["digest"] != nil:
		return key, errors.New("there is a digest but no id: a digest is keyed with the secret of its store and means nothing in another. To move such keys, copy the directory of their store")
	default:
		return key, errors.New(`"id" is missing`)
	}
	return key, key.Validate()
}

// flush makes the batch durable. A key held by another process is an error: it is
// neither done nor imported.
func (im *importer) flush(ctx context.Context) error {
	if len(im.batch) == 0 {
		return ctx.Err()
	}
	answers := make([]semel.ClaimAnswer, len(im.batch))
	err := im.store.Claim(ctx, im.batch, answers)
	var errs []error
	if err != nil {
		errs = append(errs, fmt.Errorf("write to the store: %w", err))
	}
	for i, answer := range answers {
		if len(errs) == maxImportErrors {
			errs = append(errs, errors.New("and perhaps others"))
			break
		}
		switch id := im.batch[i].Key.ID; {
		case answer.Err != nil:
			errs = append(errs, fmt.Errorf("key %s: %w", keyrecord.DisplayID(id), answer.Err))
		case answer.Decision == semel.Fresh:
			im.report.Imported++
		case answer.Decision == semel.Duplicate:
			im.report.Duplicate++
		case answer.Decision == semel.Late:
			im.report.Expired++ // older than the store's window
		case answer.Decision == semel.OutcomeUnknown:
			errs = append(errs, fmt.Errorf("key %s is unknown: settle it with keys resolve", keyrecord.DisplayID(id)))
		case answer.Decision == semel.InFlight:
			errs = append(errs, fmt.Errorf("key %s is claimed by %s until %s", keyrecord.DisplayID(id), term.DisplayText(answer.Holder), term.DisplayTime(answer.Claim.LeaseEnd)))
		case err == nil:
			errs = append(errs, fmt.Errorf("key %s: the store says that it is %s", keyrecord.DisplayID(id), answer.Decision))
		}
	}
	im.batch = im.batch[:0]
	return errors.Join(errs...)
}
