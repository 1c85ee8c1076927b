package cli

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
	"github.com/semel-dev/semel/internal/dedup"
	"github.com/semel-dev/semel/internal/kind/embedded"
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
	store  semel.Store
	window time.Duration
	now    time.Time
	ids    idParser
	owner  semel.Owner // owner of the last claim; every claim has its own nonce
	batch  []semel.ClaimRequest
	report importReport
	read   atomic.Int64 // report.Read, for the progress line
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
		Long: `Marks keys as done that were processed before semel came, so that their messages
are duplicates from the first day on. Reads JSON lines from files or standard
input, as keys export writes them:

  {"id": "order-42"}
  {"scope": "payments", "id": ["order-42", 7], "window": "30d"}
  {"scope": "payments", "id": "order-43", "expires": "2030-01-01T00:00:00Z"}

An id is a string, a number, true, false, or an array of these for a composite
key. "scope", "window" and "expires" may be missing: the flags say what then
holds. A key that is there already stays as it is; one that has expired is not
imported. An embedded store is made if there is none.

Keys become durable in batches. After an error or an interruption, importing the
same lines again is safe.`,
		RunE: k.checked(func(cmd *cobra.Command, names []string, wrong problems) error {
			refuseEmpty(cmd, "scope", &wrong)
			k.checkImport(keepIDs, &wrong)
			if len(names) == 0 {
				names = []string{"-"}
			}
			inputs := openInputs(names, k.stdin, &wrong)
			defer inputs.close()
			if err := wrong.err(); err != nil {
				return err
			}
			if keepIDs {
				k.keepIDs()
			}
			return k.importAll(cmd.Context(), inputs, window)
		}),
	}
	cmd.Flags().StringVar(&k.scope, "scope", defaultScope, "`NAME` of the key space of lines that name none")
	windowVar(cmd.Flags(), &window, "window", "forever", "how long keys of lines without window and expires are remembered from now")
	cmd.Flags().BoolVar(&keepIDs, "keep-ids", false, "keep scope and id readable beside the digest; costs their length for each key")
	completeValues(cmd, "scope")
	completeValues(cmd, "window", "forever")
	return cmd
}

// checkImport validates the target of the keys. Only import may create a store.
func (k *keysFlags) checkImport(keepIDs bool, p *problems) {
	if !k.find(k.app, p) {
		return
	}
	about := k.found.Spec.About()
	if about.NoRecords != "" {
		p.addf("%s is of the kind %s: what is imported there would be gone at once", k.shown(), k.found.Spec.Kind())
	}
	if about.Directory != "" {
		if _, err := embedded.Exists(about.Directory); err != nil {
			p.addf("--store %s: %s", about.Directory, fileReason(err))
		}
	}
	if stack, ok := k.conf.LayerOf(k.found.Name); ok && about.NoRecords == "" {
		p.addf("%s is a layer of %s, which would drop messages on its word alone: write --store-name %s", k.shown(), stack.Name, stack.Name)
	}
	if keepIDs && k.file != "" {
		p.addf("--keep-ids is for --store: in a configuration the store says keep_ids: true")
	}
}

func (k *keysFlags) importAll(ctx context.Context, inputs namedInputs, window time.Duration) error {
	return k.withStore(ctx, k.app, func(store semel.Store) error {
		im := &importer{keysFlags: k, store: store, window: window, now: time.Now(), ids: newIDParser(), owner: semel.Owner{Name: "keys import by " + actor(), Nonce: rand.Uint64()}}
		stop := k.startProgress(func() progress {
			return progress{Done: im.read.Load(), Unit: "keys", Share: -1}
		})
		err := im.readAll(ctx, inputs)
		stop()
		if err != nil {
			return fmt.Errorf("%w; %s keys are imported: importing the same lines again is safe", err, formatCount(im.report.Imported))
		}
		if k.asJSON {
			return k.printJSON(im.report)
		}
		r := &im.report
		k.note("read %s  imported %s  already there %s  expired %s",
			formatCount(r.Read), formatCount(r.Imported), formatCount(r.Duplicate), formatCount(r.Expired))
		return nil
	})
}

// namedInputs are inputs with their names for messages.
type namedInputs struct {
	names   []string
	readers []io.Reader
}

// openInputs opens all inputs before the first one is read, so that a wrong name
// is reported before anything is done. The caller must close them.
func openInputs(names []string, stdin io.Reader, wrong *problems) (in namedInputs) {
	for _, name := range names {
		switch name {
		case "":
			wrong.addf("%s", emptyInput)
			continue
		case "-":
			in.names, in.readers = append(in.names, "standard input"), append(in.readers, stdin)
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			wrong.addf("%s: %s", name, fileReason(err))
			continue
		}
		in.names, in.readers = append(in.names, name), append(in.readers, file)
	}
	return in
}

// close closes the files. They were only read, so nothing can be lost.
func (in *namedInputs) close() {
	for _, reader := range in.readers {
		if file, ok := reader.(*os.File); ok && file != os.Stdin {
			_ = file.Close()
		}
	}
}

// readAll imports every line. Lines read before an error are imported.
func (im *importer) readAll(ctx context.Context, inputs namedInputs) error {
	for i, reader := range inputs.readers {
		lines := bufio.NewScanner(dedup.Interruptible(ctx, reader))
		lines.Buffer(make([]byte, 64<<10), maxImportLine)
		number := 0
		for lines.Scan() && lines.Err() == nil { // after an error, this is an incomplete line
			number++
			err := im.add(ctx, lines.Bytes())
			if err != nil {
				return im.stopped(ctx, inputs.names[i], number, err)
			}
		}
		if err := lines.Err(); err != nil {
			return im.stopped(ctx, inputs.names[i], number+1, err)
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
	var line importLine
	if err := decodeImportLine(text, &line); err != nil {
		return err
	}
	request, err := im.request(&line)
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
func (im *importer) request(line *importLine) (semel.ClaimRequest, error) {
	request := semel.ClaimRequest{Done: true, Window: im.window}
	if line.State != "" && line.State != semel.Done.String() {
		return request, fmt.Errorf("the key is %s: only keys that are done can be imported (keys export --state done)", line.State)
	}
	var err error
	if request.Key, err = im.key(line); err != nil {
		return request, err
	}
	switch {
	case line.Window != "" && line.Expires != "":
		return request, errors.New("window and expires exclude each other")
	case line.Window != "":
		if request.Window, err = schema.ParseWindow(line.Window); err != nil {
			return request, fmt.Errorf("window %q: %w", line.Window, err)
		}
	case line.Expires == "forever":
		request.Window = semel.Forever
	case line.Expires != "":
		expires, err := time.Parse(time.RFC3339, line.Expires)
		if err != nil {
			return request, fmt.Errorf("expires %q: write it like 2030-01-01T00:00:00Z, or forever", line.Expires)
		}
		request.Window = expires.Sub(im.now)
	}
	return request, nil
}

func (im *importer) key(line *importLine) (semel.Key, error) {
	key := semel.Key{Scope: im.scope}
	var err error
	switch {
	case line.Scope != nil && line.ScopeBase64 != "":
		return key, errors.New("scope and scope_base64 exclude each other")
	case line.Scope != nil:
		if key.Scope, err = im.ids.scope(line.Scope); err != nil {
			return key, err
		}
	case line.ScopeBase64 != "":
		if key.Scope, err = parseBase64(line.ScopeBase64); err != nil {
			return key, fmt.Errorf("scope_base64: %w", err)
		}
	}
	switch {
	case line.ID != nil && line.IDBase64 != "":
		return key, errors.New("id and id_base64 exclude each other")
	case line.ID != nil:
		if key.ID, err = im.ids.id(line.ID); err != nil {
			return key, fmt.Errorf("id: %w", err)
		}
	case line.IDBase64 != "":
		if key.ID, err = parseBase64(line.IDBase64); err != nil {
			return key, fmt.Errorf("id_base64: %w", err)
		}
	case line.Digest != "":
		return key, errors.New("there is a digest but no id: a digest is keyed with the secret of its store and means nothing in another; to move such keys, copy the directory of their store")
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
			errs = append(errs, fmt.Errorf("key %s: %w", displayID(id), answer.Err))
		case answer.Decision == semel.Fresh:
			im.report.Imported++
		case answer.Decision == semel.Duplicate:
			im.report.Duplicate++
		case answer.Decision == semel.Late:
			im.report.Expired++ // older than the store's window
		case answer.Decision == semel.InDoubt:
			errs = append(errs, fmt.Errorf("key %s is unknown: settle it with keys resolve", displayID(id)))
		case answer.Decision == semel.InFlight:
			errs = append(errs, fmt.Errorf("key %s is claimed by %s until %s", displayID(id), displayText(answer.Holder), displayTime(answer.Claim.LeaseEnd)))
		case err == nil:
			errs = append(errs, fmt.Errorf("key %s: the store says that it is %s", displayID(id), answer.Decision))
		}
	}
	im.batch = im.batch[:0]
	return errors.Join(errs...)
}
