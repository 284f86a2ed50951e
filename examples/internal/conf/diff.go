package conf

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Diff lists what two values of one struct type have otherwise, by the paths of their keys: "+ path" is new, "- path" gone, "~ path: old -> new"
// changed. Items of lists that have a name are told apart by it, so that their order does not matter. A key that has the value of its tag default is
// as good as not given.
func Diff(old, now any) (changes []string) {
	a, b := flat{map[string]string{}, map[string]string{}}, flat{map[string]string{}, map[string]string{}}
	flatten(reflect.ValueOf(old), "", a)
	flatten(reflect.ValueOf(now), "", b)
	paths := map[string]bool{}
	for p := range a.given {
		paths[p] = true
	}
	for p := range b.given {
		paths[p] = true
	}
	sorted := make([]string, 0, len(paths))
	for p := range paths {
		sorted = append(sorted, p)
	}
	slices.Sort(sorted)
	for _, p := range sorted {
		x, had := a.at(p)
		y, has := b.at(p)
		switch {
		case had && !has:
			changes = append(changes, strings.TrimRight("- "+p+": "+x, ": "))
		case has && !had:
			changes = append(changes, strings.TrimRight("+ "+p+": "+y, ": "))
		case x != y:
			changes = append(changes, fmt.Sprintf("~ %s: %s -> %s", p, orNone(x), orNone(y)))
		}
	}
	return changes
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}

// flat has the text of every key that is given, by its path. Defaults that are written out are known beside.
type flat struct{ given, defaults map[string]string }

func (f flat) at(path string) (text string, ok bool) {
	if text, ok = f.given[path]; !ok {
		text, ok = f.defaults[path]
	}
	return text, ok
}

// flatten notes the text of every key below v that is given.
func flatten(v reflect.Value, path string, to flat) {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	if s, ok := textOf(v); ok {
		if s != "" {
			to.given[path] = s
		}
		return
	}
	below := func(name string) string {
		if path == "" {
			return name
		}
		return path + "." + name
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			switch x := v.FieldByIndex(f.index); {
			case x.IsZero():
			case isDefault(x, f.def):
				to.defaults[below(f.name)] = f.def
			default:
				flatten(x, below(f.name), to)
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			to.given[below(it.Key().String())] = "" // the item as such
			flatten(it.Value(), below(it.Key().String()), to)
		}
	case reflect.Slice:
		var plain []string
		for i := range v.Len() {
			item := v.Index(i)
			if name := nameOf(item); name != "" {
				at := fmt.Sprintf("%s[%s]", path, name)
				to.given[at] = ""
				flatten(item, at, to)
			} else if s, ok := textOf(item); ok {
				plain = append(plain, s)
			} else {
				flatten(item, fmt.Sprintf("%s[%d]", path, i), to)
			}
		}
		if plain != nil {
			to.given[path] = "[" + strings.Join(plain, ", ") + "]"
		}
	}
}

// isDefault reports whether a value is what its tag default says.
func isDefault(v reflect.Value, def string) bool {
	if def == "" {
		return false
	}
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return false
		}
		v = v.Elem()
	}
	if d, ok := v.Interface().(time.Duration); ok {
		x, err := time.ParseDuration(def)
		return err == nil && x == d
	}
	s, ok := textOf(v)
	return ok && s == def
}

// nameOf returns the name of an item that has the key name.
func nameOf(v reflect.Value) string {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return ""
	}
	for _, f := range fieldsOf(v.Type()) {
		if f.name == "name" && f.typ.Kind() == reflect.String {
			return v.FieldByIndex(f.index).String()
		}
	}
	return ""
}

// textOf returns the text of a value that is none of keys and values or a list.
func textOf(v reflect.Value) (string, bool) {
	if d, ok := v.Interface().(time.Duration); ok {
		return d.String(), true
	}
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		b, err := m.MarshalText()
		if err != nil {
			return fmt.Sprint(v.Interface()), true
		}
		return string(b), true
	}
	if s, ok := v.Interface().(fmt.Stringer); ok {
		return s.String(), true
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Map, reflect.Slice, reflect.Pointer:
		return "", false
	}
	return fmt.Sprint(v.Interface()), true
}
