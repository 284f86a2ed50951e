package conf

import "reflect"

// Rest is the type of a struct's field that takes the paths of keys which the struct does not know: for programs that
// read a part of another one's file. Without such a field, unknown keys are faults.
type Rest []string

// rest notes the path of an unknown key, if v has a place for it.
func rest(v reflect.Value, path string) bool {
	for i := range v.NumField() {
		if r, ok := v.Field(i).Addr().Interface().(*Rest); ok {
			*r = append(*r, path)
			return true
		}
	}
	return false
}
