package clienttable

import (
	"fmt"
	"reflect"
)

// whyNotPacked says what keeps K and V from being stored as plain words, or "".
func whyNotPacked[K comparable, V any]() string {
	if why := notPlain(reflect.TypeFor[K](), "key", true); why != "" {
		return why
	}
	return notPlain(reflect.TypeFor[V](), "value", false)
}

// notPlain says why values of t are not plain words, or "". Keys are compared as
// words, so they must be free of floats, where equal is not the same as same bits,
// and of blank fields, which == ignores.
func notPlain(t reflect.Type, what string, key bool) string {
	switch t.Kind() {
	case reflect.Bool, reflect.Uintptr,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return ""
	case reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		if key {
			return fmt.Sprintf("%s (%v) is a float", what, t)
		}
		return ""
	case reflect.Array:
		return notPlain(t.Elem(), what+" element", key)
	case reflect.Struct:
		end := uintptr(0)
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Offset != end {
				return fmt.Sprintf("%s (%v) has padding before field %s", what, t, f.Name)
			}
			if key && f.Name == "_" {
				return fmt.Sprintf("%s (%v) has a blank field", what, t)
			}
			if why := notPlain(f.Type, what+"."+f.Name, key); why != "" {
				return why
			}
			end += f.Type.Size()
		}
		if end != t.Size() {
			return fmt.Sprintf("%s (%v) has padding at its end", what, t)
		}
		return ""
	}
	return fmt.Sprintf("%s (%v) holds pointers", what, t)
}
