package policy

import (
	"fmt"
	"slices"
	"strings"
)

// With returns a table that has rules as well. t stays valid, and the two share what did not
// change. Only the VIPs that rules name are compiled again, each as a whole: the cost does
// not depend on how many rules there are for other VIPs, but a change of one VIP with 100,000
// rules takes nearly a tenth of a second. Faults are those of [Compile], where rules that t has
// already have index -1.
func (t *Table[V]) With(rules ...Rule[V]) (*Table[V], error) {
	return t.change(nil, rules)
}

// Without returns a table that lacks the named rules. A name that t does not have is a
// fault that wraps [ErrName].
func (t *Table[V]) Without(names ...string) (*Table[V], error) {
	return t.change(names, nil)
}

// Replace returns a table that has rules, each in the place of the rule of its name where
// t has one. It is Without and With in one step, so that no table in between lacks them.
func (t *Table[V]) Replace(rules ...Rule[V]) (*Table[V], error) {
	var old []string
	gone := make(map[string]bool)
	for _, r := range rules {
		if t.Rule(r.Name) != nil && !gone[r.Name] {
			gone[r.Name] = true
			old = append(old, r.Name)
		}
	}
	return t.change(old, rules)
}

// groupKey tells the services of a table apart.
type groupKey struct {
	disabled, internal bool
	fam                family
	bits               uint8
	vip                u128
}

// edit is what becomes of one service.
type edit[V any] struct {
	gone  map[*Rule[V]]bool
	added []entry[V]
}

func (t *Table[V]) change(remove []string, add []Rule[V]) (*Table[V], error) {
	var next Table[V]
	if t != nil {
		next = Table[V]{cfg: t.cfg, live: t.live, off: t.off, names: t.names, count: t.count}
	}
	var faults faults
	var order []groupKey // so that faults come in a fixed order
	edits := make(map[groupKey]*edit[V])
	edited := func(r *Rule[V], n *norm) *edit[V] {
		k := groupKey{r.Disabled, r.Internal && !r.Disabled, n.fam, n.bits, n.vip}
		if edits[k] == nil {
			edits[k] = &edit[V]{gone: make(map[*Rule[V]]bool)}
			order = append(order, k)
		}
		return edits[k]
	}
	next.names.prepareChange(len(add))
	for i, name := range remove {
		r := next.names.remove(name)
		if r == nil {
			faults.add(&RuleError{Name: name, Index: i, OtherIndex: -1,
				Err: fmt.Errorf("%w: there is no such rule", ErrName)})
			continue
		}
		n, _ := r.Match.norm() // was checked when the rule came in
		edited(r, &n).gone[r] = true
	}
	for _, r := range add {
		next.names.own(r.Name)
	}
	for _, e := range prepare(&next.names, add, &faults) {
		ed := edited(e.rule, &e.norm)
		ed.added = append(ed.added, e)
	}

	b := builder{strict: next.cfg.StrictTier}
	changes := make(map[*vips[V]][]vipEdit[V])
	for _, k := range order {
		v := next.at(k)
		group := edits[k].apply(v.service(k.fam, k.vip, k.bits))
		if !k.disabled && len(edits[k].added) > 0 {
			checkGroup(group, &faults)
		}
		if len(faults.list) > 0 {
			continue
		}
		change := vipEdit[V]{fam: k.fam, bits: k.bits, vip: k.vip}
		if len(group) > 0 {
			m := compileGroup(&b, group)
			change.member = &m
		}
		changes[v] = append(changes[v], change)
	}
	if err := faults.join(); err != nil {
		return nil, err
	}
	for v, c := range changes {
		v.apply(c)
	}
	next.count += len(add) - len(remove)
	return &next, nil
}

func (t *Table[V]) at(k groupKey) *vips[V] {
	return t.index(&Rule[V]{Disabled: k.disabled, Internal: k.internal}, k.fam)
}

// apply returns the rules of a service, which may be nil, after an edit, by precedence.
func (e *edit[V]) apply(s *service[V]) []entry[V] {
	slices.SortFunc(e.added, compareEntries)
	if s == nil {
		return e.added
	}
	added := e.added
	group := make([]entry[V], 0, len(s.rules)+len(added))
	for _, r := range s.rules { // are in order already
		if len(e.gone) > 0 && e.gone[r] {
			continue
		}
		n, _ := r.Match.norm()
		old := entry[V]{n, r, -1}
		for len(added) > 0 && compareEntries(added[0], old) < 0 {
			group = append(group, added[0])
			added = added[1:]
		}
		group = append(group, old)
	}
	return append(group, added...)
}

// compareEntries orders the rules of one service.
func compareEntries[V any](a, b entry[V]) int {
	if c := a.norm.compare(&b.norm); c != 0 {
		return c
	}
	if c := compareBool(a.rule.Internal, b.rule.Internal); c != 0 {
		return c
	}
	return strings.Compare(a.rule.Name, b.rule.Name)
}
