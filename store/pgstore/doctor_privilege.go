package pgstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/semel-dev/semel"
)

// need is what a role must be allowed to do with a table or sequence.
type need struct{ relation, privilege string }

// needs returns what the store's calls need, given the partitions of the table
// of keys. PostgreSQL checks the privileges of the table that a statement names:
// claims name the parent, and clean-up names the partitions.
func (s *Store) needs(partitions []string) (needs []need) {
	add := func(relation string, privileges ...string) {
		for _, p := range privileges {
			needs = append(needs, need{relation, p})
		}
	}
	add(s.opts.quoted("meta"), "SELECT", "UPDATE")
	add(s.opts.quoted("migrations"), "SELECT")
	add(s.opts.quoted("tokens"), "USAGE")
	if s.hasher.times != nil {
		add(s.opts.quoted("times"), "SELECT", "UPDATE")
	}
	add(s.opts.quoted("keys"), "SELECT", "INSERT", "UPDATE", "DELETE")
	for _, partition := range partitions {
		add(partition, "SELECT", "UPDATE", "DELETE")
	}
	return needs
}

const partitionsSQL = `SELECT array(SELECT format('%I.%I', n.nspname, c.relname)
	FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
	WHERE i.inhparent = to_regclass($1) ORDER BY c.oid)`

const lackingSQL = `SELECT current_user, array(
	SELECT need.privilege || ' on ' || need.relation FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS need (relation, privilege, n)
	WHERE NOT CASE need.privilege WHEN 'USAGE' THEN has_sequence_privilege(need.relation, need.privilege) ELSE has_table_privilege(need.relation, need.privilege) END
	ORDER BY need.n)`

// privileges judges what this role may do.
func (e *examination) privileges(ctx context.Context) error {
	var partitions []string
	if err := e.ask(ctx, partitionsSQL, []any{e.opts.quoted("keys")}, &partitions); err != nil {
		return err
	}
	role, lacking, err := e.lacking(ctx, e.needs(partitions))
	if err != nil {
		return err
	}
	found := fmt.Sprintf("role %s has what it needs", role)
	if len(lacking) > 0 {
		found = fmt.Sprintf("role %s lacks %s", role, listed(lacking))
	}
	e.judge(len(lacking) > 0, semel.Broken, "privileges", found, "calls that need them fail", "GRANT them")
	if err := e.audits(ctx); err != nil || e.hasher.times == nil {
		return err
	}
	return e.truncates(ctx, partitions)
}

// audits judges whether this role may write the audit log.
func (e *examination) audits(ctx context.Context) error {
	var may bool
	if err := e.ask(ctx, "SELECT has_table_privilege($1, 'INSERT') AND has_table_privilege($1, 'SELECT')", []any{e.opts.quoted("audit")}, &may); err != nil {
		return err
	}
	found := "this role may write it"
	if !may {
		found = "this role may not write it"
	}
	e.judge(!may, semel.Notice, "audit log", found, "none for claims; keys cannot be removed or resolved by hand with this role",
		"GRANT INSERT, SELECT ON "+e.opts.quoted("audit")+" to the role of who does so")
	return nil
}

// truncates judges whether this role may do the clean-up, where that truncates
// tables.
func (e *examination) truncates(ctx context.Context, tables []string) error {
	var needs []need
	for _, table := range tables {
		needs = append(needs, need{table, "TRUNCATE"})
	}
	_, lacking, err := e.lacking(ctx, needs)
	if err != nil {
		return err
	}
	found := "this role may"
	if len(lacking) > 0 {
		found = "this role lacks " + listed(lacking)
	}
	e.judge(len(lacking) > 0, semel.Notice, "truncate", found, "none for claims; clean-up by this role fails", "GRANT TRUNCATE to the role that runs the maintenance")
	return nil
}

// lacking returns this role, and which of the privileges it does not have.
func (e *examination) lacking(ctx context.Context, needs []need) (role string, lacking []string, err error) {
	relations, privileges := make([]string, len(needs)), make([]string, len(needs))
	for i, n := range needs {
		relations[i], privileges[i] = n.relation, n.privilege
	}
	err = e.ask(ctx, lackingSQL, []any{relations, privileges}, &role, &lacking)
	return role, lacking, err
}

// listed names the first of many.
func listed(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
