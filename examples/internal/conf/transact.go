package conf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// A Step is a part of a change of what is in force. One that fails may be half done: Undo brings back what was before it in any case.
type Step struct {
	Name     string
	Do, Undo func() error
}

// Transact does all steps, or none: when one fails, it and those before it are taken back, the last one first.
func Transact(steps []Step) error {
	for i, s := range steps {
		err := s.Do()
		if err == nil {
			continue
		}
		for _, done := range slices.Backward(steps[:i+1]) {
			if back := done.Undo(); back != nil {
				err = errors.Join(err, fmt.Errorf("and then, taking %s back: %w", done.Name, back))
			}
		}
		return err
	}
	return nil
}

// OwnAddrs is the way from a balancer's own addresses to others, by set: a family that is new comes before what needs it (more), and one that goes leaves
// after that (less). key is where a file has them.
func OwnAddrs(key string, before, addrs []netip.Addr, set func(...netip.Addr) error) (more, less []Step) {
	if slices.Equal(addrs, before) {
		return nil, nil
	}
	do := func(addrs []netip.Addr) func() error {
		return func() error {
			if err := set(addrs...); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			return nil
		}
	}
	both := families(addrs, before)
	const name = "the balancer's addresses"
	return []Step{{name, do(both), do(before)}}, []Step{{name, do(addrs), do(both)}}
}

// families returns addrs, and those of before whose family addrs has none of: what suits both.
func families(addrs, before []netip.Addr) []netip.Addr {
	all := slices.Clone(addrs)
	for _, a := range before {
		if !slices.ContainsFunc(addrs, func(o netip.Addr) bool { return o.Unmap().Is4() == a.Unmap().Is4() }) {
			all = append(all, a)
		}
	}
	return all
}
