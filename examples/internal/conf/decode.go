// Package conf reads the YAML configuration of the example programs strictly: every unknown key, wrong
// type and duplicate is a fault with its line and column, what would be valid, and the nearest known key,
// and all faults are reported at once. The same Go types give a JSON schema and a reference text, so that neither can
// differ from what is read.
//
// Struct fields are named by the tag yaml and described by the tag doc. Types that implement encoding.TextUnmarshaler
// are read by it.
package conf

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// A Fault is something wrong at a place of a file.
type Fault struct {
	Line, Column int
	Path         string // such as farms.web.nodes[0].weight
	Text         string
}

func (f *Fault) Error() string {
	if f.Path == "" {
		return fmt.Sprintf("%d:%d: %s", f.Line, f.Column, f.Text)
	}
	return fmt.Sprintf("%d:%d: %s: %s", f.Line, f.Column, f.Path, f.Text)
}

// A File is a decoded file, which can tell where a path stands.
type File struct {
	nodes  map[string]*yaml.Node // values
	keys   map[string]*yaml.Node
	faults []*Fault
}

// maxNodes bounds what aliases may blow a file up to.
const maxNodes = 1 << 20

// Decode reads data into v, a pointer to a struct. The error joins all [Fault]s, in the order of the
// file. The File is returned even then.
func Decode(data []byte, v any) (*File, error) {
	f := &File{nodes: map[string]*yaml.Node{}, keys: map[string]*yaml.Node{}}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			f.faults = append(f.faults, &Fault{1, 1, "", "the file is empty"})
			return f, f.Err()
		}
		f.faults = append(f.faults, syntax(err))
		return f, f.Err()
	}
	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		f.faults = append(f.faults, &Fault{second.Line, second.Column, "", "a second document: want one only"})
	} else if !errors.Is(err, io.EOF) {
		f.faults = append(f.faults, syntax(err))
	}
	if len(doc.Content) == 1 {
		f.value(doc.Content[0], reflect.ValueOf(v).Elem(), "")
	}
	return f, f.Err()
}

// syntax is a fault of the parser, which knows the line only, in its text.
func syntax(err error) *Fault {
	line, text := 1, strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if n, msg, ok := strings.Cut(rest, ": "); ok {
			if l, err := strconv.Atoi(n); err == nil {
				line, text = l, msg
			}
		}
	}
	return &Fault{line, 1, "", text}
}

// Err joins the faults so far, in the order of the file.
func (f *File) Err() error {
	slices.SortStableFunc(f.faults, func(a, b *Fault) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	errs := make([]error, len(f.faults))
	for i, x := range f.faults {
		errs[i] = x
	}
	return errors.Join(errs...)
}

// Add adds a fault at a path, or where its nearest parent stands. What is wrong there already is not said twice.
func (f *File) Add(path, format string, args ...any) {
	f.add(f.nodes, path, fmt.Sprintf(format, args...))
}

// AddKey is Add for a fault of the key itself.
func (f *File) AddKey(path, format string, args ...any) {
	f.add(f.keys, path, fmt.Sprintf(format, args...))
}

func (f *File) add(nodes map[string]*yaml.Node, path, text string) {
	if slices.ContainsFunc(f.faults, func(x *Fault) bool { return x.Path == path && x.Text == text }) {
		return
	}
	for at := path; ; at = at[:max(0, strings.LastIndexAny(at, ".["))] {
		n, ok := nodes[at]
		if !ok {
			n, ok = f.nodes[at]
		}
		switch {
		case ok:
			f.fault(n, path, "%s", text)
			return
		case at == "":
			f.faults = append(f.faults, &Fault{1, 1, path, text})
			return
		}
	}
}

// Given reports whether the file has a value at a path.
func (f *File) Given(path string) bool { return f.nodes[path] != nil }

// Version refuses a version of the format, as the file has it, other than 1.
func (f *File) Version(v int) {
	if v != 1 && f.Given("version") && !f.Faulty("version") {
		f.Add("version", "%d: this program knows version 1", v)
	}
}

// Object reports whether the file has keys and values at a path.
func (f *File) Object(path string) bool {
	n := f.nodes[path]
	return n != nil && n.Kind == yaml.MappingNode
}

// Faulty reports whether something is wrong at a path or below it, so that its value means nothing.
func (f *File) Faulty(path string) bool {
	return slices.ContainsFunc(f.faults, func(x *Fault) bool {
		rest, below := strings.CutPrefix(x.Path, path)
		return below && (path == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

func (f *File) fault(n *yaml.Node, path, format string, args ...any) {
	f.faults = append(f.faults, &Fault{n.Line, n.Column, path, fmt.Sprintf(format, args...)})
}

var (
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
	durationType = reflect.TypeFor[time.Duration]()
)

func (f *File) value(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	f.nodes[path] = n
	if len(f.nodes) > maxNodes {
		if len(f.nodes) == maxNodes+1 {
			f.fault(n, path, "the file is larger than %d values", maxNodes)
		}
		return
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	if v.CanAddr() && v.Addr().Type().Implements(textType) {
		f.text(n, v, path)
		return
	}
	switch {
	case v.Type() == durationType:
		if s, ok := f.scalar(n, path, "a duration such as 5s or 1m30s"); ok {
			d, err := time.ParseDuration(s)
			if err != nil {
				f.fault(n, path, "%q: want a duration such as 5s or 1m30s", s)
				return
			}
			v.SetInt(int64(d))
		}
	case v.Kind() == reflect.Struct:
		f.object(n, v, path)
	case v.Kind() == reflect.Map:
		f.table(n, v, path)
	case v.Kind() == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			f.fault(n, path, "%s: want a list", kind(n))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, c := range n.Content {
			f.value(c, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	default:
		f.plain(n, v, path)
	}
}

func (f *File) text(n *yaml.Node, v reflect.Value, path string) {
	s, ok := f.scalar(n, path, "a value")
	if !ok {
		return
	}
	to := v.Addr().Interface().(encoding.TextUnmarshaler)
	err := to.UnmarshalText([]byte(s))
	if err == nil {
		return
	}
	switch to.(type) {
	case *netip.Addr:
		f.fault(n, path, "%q: want an address such as 192.0.2.1 or 2001:db8::1", s)
	case *netip.AddrPort:
		f.fault(n, path, "%q: want an address and port such as 192.0.2.1:443 or [2001:db8::1]:443", s)
	case *netip.Prefix:
		f.fault(n, path, "%q: want a network such as 192.0.2.0/24 or 2001:db8::/64", s)
	default:
		// Errors of the library begin with the name of its package.
		text := err.Error()
		if p, rest, ok := strings.Cut(text, ": "); ok && !strings.ContainsAny(p, " \"") {
			text = strings.TrimPrefix(rest, "invalid: ")
		}
		f.fault(n, path, "%s", text)
	}
}

func (f *File) scalar(n *yaml.Node, path, want string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		f.fault(n, path, "%s: want %s", kind(n), want)
		return "", false
	}
	return n.Value, true
}

func (f *File) plain(n *yaml.Node, v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.String:
		if s, ok := f.scalar(n, path, "a text"); ok {
			v.SetString(s)
		}
	case reflect.Bool:
		if s, ok := f.scalar(n, path, "true or false"); ok {
			b, err := strconv.ParseBool(s)
			if err != nil || n.Tag != "!!bool" {
				f.fault(n, path, "%q: want true or false", s)
				return
			}
			v.SetBool(b)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if s, ok := f.scalar(n, path, "a whole number"); ok {
			i, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 0, v.Type().Bits())
			if err != nil {
				f.fault(n, path, "%q: want a whole number", s)
				return
			}
			v.SetInt(i)
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if s, ok := f.scalar(n, path, "a whole number"); ok {
			i, err := strconv.ParseUint(strings.ReplaceAll(s, "_", ""), 0, v.Type().Bits())
			if err != nil {
				f.fault(n, path, "%q: want a whole number from 0 to %d", s, uint64(1)<<v.Type().Bits()-1)
				return
			}
			v.SetUint(i)
		}
	case reflect.Float32, reflect.Float64:
		if s, ok := f.scalar(n, path, "a number"); ok {
			x, err := strconv.ParseFloat(s, v.Type().Bits())
			if err != nil {
				f.fault(n, path, "%q: want a number", s)
				return
			}
			v.SetFloat(x)
		}
	default:
		panic("conf: no configuration can have the type " + v.Type().String())
	}
}

func kind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "keys and values"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "nothing"
	}
	return strconv.Quote(n.Value)
}

// pairs calls do for each key and value, and reports duplicates.
func (f *File) pairs(n *yaml.Node, path string, do func(key, value *yaml.Node, at string)) {
	if n.Kind != yaml.MappingNode {
		f.fault(n, path, "%s: want keys and values", kind(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		at := k.Value
		if path != "" {
			at = path + "." + k.Value
		}
		if k.Kind != yaml.ScalarNode {
			f.fault(k, path, "%s as a key: want a text", kind(k))
			continue
		}
		if line, ok := seen[k.Value]; ok {
			f.fault(k, at, "given before, in line %d", line)
			continue
		}
		seen[k.Value] = k.Line
		f.keys[at] = k
		do(k, n.Content[i+1], at)
	}
}

func (f *File) table(n *yaml.Node, v reflect.Value, path string) {
	v.Set(reflect.MakeMap(v.Type()))
	f.pairs(n, path, func(key, value *yaml.Node, at string) {
		item := reflect.New(v.Type().Elem()).Elem()
		f.value(value, item, at)
		v.SetMapIndex(reflect.ValueOf(key.Value).Convert(v.Type().Key()), item)
	})
}

func (f *File) object(n *yaml.Node, v reflect.Value, path string) {
	fields := fieldsOf(v.Type())
	given := map[string]bool{}
	f.pairs(n, path, func(key, value *yaml.Node, at string) {
		i := slices.IndexFunc(fields, func(x field) bool { return x.name == key.Value })
		if i < 0 {
			if rest(v, at) {
				return
			}
			names := make([]string, len(fields))
			for j := range fields {
				names[j] = fields[j].name
			}
			f.fault(key, at, "unknown key; %s", Nearest(key.Value, names))
			return
		}
		given[key.Value] = true
		f.value(value, v.FieldByIndex(fields[i].index), at)
	})
	if n.Kind != yaml.MappingNode {
		return
	}
	for _, x := range fields {
		if x.required && !given[x.name] {
			f.fault(n, path, "%s is missing; it says: %s", x.name, x.doc)
		}
	}
}

// Nearest names the known word that is nearest to one that is not known, or all of them.
func Nearest(key string, known []string) string {
	best, least := "", 3
	for _, k := range known {
		if d := distance(key, k); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %s?", best)
	}
	return "known are " + strings.Join(known, ", ")
}

// distance is the edit distance of two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// field is a key that a struct has.
type field struct {
	name, doc, def string
	required       bool
	index          []int
	typ            reflect.Type
}

// fieldsOf lists the keys of a struct, those of embedded structs among them.
func fieldsOf(t reflect.Type) (fields []field) {
	for _, x := range reflect.VisibleFields(t) {
		if x.Anonymous || !x.IsExported() {
			continue
		}
		name, opts, _ := strings.Cut(x.Tag.Get("yaml"), ",")
		if name == "" || name == "-" {
			continue
		}
		fields = append(fields, field{name, x.Tag.Get("doc"), x.Tag.Get("default"), opts == "required", x.Index, x.Type})
	}
	return fields
}
