package conf

import (
	"errors"
	"fmt"
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
