// Package enum gives small enumerations their text form: one list of names serves String, AppendText and UnmarshalText.
package enum

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Names has the names of the values of T, from 0 on; "" is a value that has none. Make it with [Of]; it is never changed, and safe for
// concurrent use.
type Names[T ~uint8] struct {
	what    string
	invalid error
	texts   []string
}

// Of names the values of T. Errors begin with what, as in "policy: tier".
func Of[T ~uint8](what string, texts ...string) *Names[T] {
	return &Names[T]{what: what, texts: texts}
}

// Wrapping is Of, with errors that wrap and begin with one.
func Wrapping[T ~uint8](invalid error, what string, texts ...string) *Names[T] {
	return &Names[T]{what: what, invalid: invalid, texts: texts}
}

// Len returns the number of values.
func (n *Names[T]) Len() int { return len(n.texts) }

// Known reports whether v has a name.
func (n *Names[T]) Known(v T) bool { return int(v) < len(n.texts) && n.texts[v] != "" }

// List returns the names as "a, b, c".
func (n *Names[T]) List() string {
	return strings.Join(slices.DeleteFunc(slices.Clone(n.texts), func(s string) bool { return s == "" }), ", ")
}

// String returns the name of v, or "Type(7)".
func (n *Names[T]) String(v T) string {
	if n.Known(v) {
		return n.texts[v]
	}
	return fmt.Sprintf("%s(%d)", reflect.TypeFor[T]().Name(), uint8(v))
}

// Append appends the name of v.
func (n *Names[T]) Append(b []byte, v T) ([]byte, error) {
	if n.Known(v) {
		return append(b, n.texts[v]...), nil
	}
	return b, n.fault(uint8(v))
}

// Parse sets *v to the value that text names.
func (n *Names[T]) Parse(v *T, text []byte) error {
	i := slices.Index(n.texts, string(text))
	if i < 0 || len(text) == 0 {
		return n.fault(fmt.Sprintf("%q", text))
	}
	*v = T(i)
	return nil
}

func (n *Names[T]) fault(got any) error {
	if n.invalid != nil {
		return fmt.Errorf("%w: %s %v: want one of %s", n.invalid, n.what, got, n.List())
	}
	return fmt.Errorf("%s %v: want one of %s", n.what, got, n.List())
}
