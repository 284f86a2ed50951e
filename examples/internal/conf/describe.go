package conf

import (
	"encoding"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Schema returns a JSON schema (draft 2020-12) of the files that Decode reads into a value of v's type.
func Schema(v any, title string) map[string]any {
	s := schema(reflect.TypeOf(v))
	s["$schema"], s["title"] = "https://json-schema.org/draft/2020-12/schema", title
	return s
}

func schema(t reflect.Type) map[string]any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if names := enumOf(t); len(names) > 0 {
		return map[string]any{"enum": names}
	}
	// What is read as a text may look like another scalar.
	text := []string{"string", "number", "boolean"}
	if reflect.PointerTo(t).Implements(textType) {
		return map[string]any{"type": text}
	}
	switch {
	case t == durationType:
		return map[string]any{"type": []string{"string", "number"}, "pattern": `^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)([0-9]*\.?[0-9]*(ns|us|µs|μs|ms|s|m|h))*$|^[-+]?0$`, "minimum": 0, "maximum": 0}
	case t.Kind() == reflect.Struct:
		props, required := map[string]any{}, []string{}
		for _, f := range fieldsOf(t) {
			p := schema(f.typ)
			p["description"] = f.doc
			if f.def != "" {
				p["description"] = f.doc + " Default " + f.def + "."
			}
			props[f.name] = p
			if f.required {
				required = append(required, f.name)
			}
		}
		return map[string]any{"type": "object", "properties": props, "required": required, "additionalProperties": false}
	case t.Kind() == reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schema(t.Elem())}
	case t.Kind() == reflect.Slice:
		return map[string]any{"type": "array", "items": schema(t.Elem())}
	case t.Kind() == reflect.Bool:
		return map[string]any{"type": "boolean"}
	case t.Kind() == reflect.String:
		return map[string]any{"type": text}
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64:
		most := uint64(1)<<(t.Bits()-1) - 1
		return map[string]any{"type": "integer", "minimum": -int64(most) - 1, "maximum": most}
	case t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0, "maximum": ^uint64(0) >> (64 - t.Bits())}
	}
	return map[string]any{"type": "number"}
}

// enumOf lists the texts of a small enumeration: a uint8 type whose first values have a text and whose next one has none.
func enumOf(t reflect.Type) (names []string) {
	if t.Kind() != reflect.Uint8 || !t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) || !reflect.PointerTo(t).Implements(textType) {
		return nil
	}
	for i := range 64 {
		v := reflect.New(t).Elem()
		v.SetUint(uint64(i))
		b, err := v.Interface().(encoding.TextMarshaler).MarshalText()
		if err != nil {
			break
		}
		names = append(names, string(b))
	}
	return names
}

// Reference writes every key of v's type with its description, indented as in a file.
func Reference(w io.Writer, v any) error {
	var b strings.Builder
	reference(&b, reflect.TypeOf(v), "")
	_, err := io.WriteString(w, b.String())
	return err
}

func reference(b *strings.Builder, t reflect.Type, indent string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for _, f := range fieldsOf(t) {
		fmt.Fprintf(b, "%s%s:", indent, f.name)
		inner := f.typ
		for inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		note := f.doc
		if names := enumOf(inner); len(names) > 0 {
			note += " One of " + strings.Join(names, ", ") + "."
		}
		if f.required {
			note += " Required."
		}
		if f.def != "" {
			note += " Default " + f.def + "."
		}
		fmt.Fprintf(b, "  # %s\n", note)
		deeper := indent + "  "
		switch {
		case inner.Kind() == reflect.Map:
			fmt.Fprintf(b, "%sNAME:\n", deeper)
			inner, deeper = inner.Elem(), deeper+"  "
		case inner.Kind() == reflect.Slice && isObject(inner.Elem()):
			fmt.Fprintf(b, "%s-\n", deeper)
			inner, deeper = inner.Elem(), deeper+"  "
		}
		for inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if isObject(inner) {
			reference(b, inner, deeper)
		}
	}
}

// isObject reports whether values of t, or what it points to, are keys and values.
func isObject(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(textType)
}
