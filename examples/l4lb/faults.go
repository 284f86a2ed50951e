package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/policy/l7"
)

// The library tells faults by the names of its own fields. Here they become faults of the file: at the key that a field came from, in the words
// of the file.

// fieldKeys are names of the library's fields, each followed by the key of the file that it comes from.
type fieldKeys string

const (
	checkKeys fieldKeys = "Interval interval Timeout timeout Rise rise Fall fall HoldDown hold-down Path path Host host Ranges status Content body " +
		"ServerName server-name MinValidity min-validity Steps steps Key secret File file User user Password password DN dn Database database " +
		"Name query Zone zone Service service StartTLS tls Secure tls Payload send Send send Expect expect"
	farmKeys fieldKeys = "PanicPercent panic-percent RecoveryTime recovery SlowStart slow-start ClientBits hash-client-bits nodes nodes"
	// planeFarmKeys are those of a service of the data plane that come from its farm.
	planeFarmKeys fieldKeys = "MTU path-mtu Locals locals Tunnel tunnel Tunnel.Kind tunnel.kind Tunnel.Key tunnel.key Tunnel.Port tunnel.port " +
		"Tunnel.NodeMAC tunnel.node-mac Mode mode Forward forward"
	planeServiceKeys fieldKeys = "MinNodes min-nodes MidStream lost-session Delay delay Delay.Read delay.read Delay.Rules delay.rules Delay.Sessions delay.tls-persistence"
	ageingKeys       fieldKeys = "Idle idle SYN syn Linger linger"
	limitKeys        fieldKeys = "Budget budget Time time"
	tlsKeys          fieldKeys = "MaxEntries sessions TTL idle"
)

// of returns the key of a field, which may have an index.
func (k fieldKeys) of(field string) (key string, ok bool) {
	name, index, indexed := strings.Cut(field, "[")
	words := strings.Fields(string(k))
	for i := 0; i+1 < len(words); i += 2 {
		if words[i] == name {
			if key = words[i+1]; indexed {
				key += "[" + index
			}
			return key, true
		}
	}
	return "", false
}

// sayings are the ways in which the library's packages say a fault: the field, its value, and what they want.
var sayings = [...]*regexp.Regexp{
	regexp.MustCompile(`(?s)^healthcheck: check "[^"]*": (\w+) (.*), (want .*)$`),
	regexp.MustCompile(`(?s)^probe: \w+\.([\w\[\]]+)(?: and [\w.]+)?: got (.*), (want .*)$`),
	regexp.MustCompile(`(?s)^steering: (?:Config\.|Node\[\d+\] "[^"]*"\.)?(\w+) = (.*): (want .*)$`),
	regexp.MustCompile(`(?s)^clienttable: [\w ]+: (\w+) (.*): (must be .*)$`),
	regexp.MustCompile(`(?s)^sslpersist: (\w+) is (.*): (want .*)$`),
	regexp.MustCompile(`(?s)^splice: limits: (\w+): (.*): (want .*)$`),
}

// tell adds what the library finds wrong with a section of the file.
func tell(f *conf.File, path string, err error, keys fieldKeys) {
	for _, e := range joined(err) {
		if strings.Contains(e.Error(), ": FastInterval ") {
			continue // it is made of the interval
		}
		key, text := keys.translate(e)
		f.Add(strings.TrimSuffix(path+"."+key, "."), "%s", text)
	}
}

// translate returns the key that a fault is about, and what is wrong with it. The key is "" if the fault is about no single one.
func (k fieldKeys) translate(err error) (key, text string) {
	var at *placed
	if errors.As(err, &at) {
		return at.path, at.err.Error()
	}
	text = err.Error()
	for _, re := range sayings {
		if m := re.FindStringSubmatch(text); m != nil {
			if key, ok := k.of(m[1]); ok {
				if strings.HasPrefix(m[2], "none with a ") { // and a field
					m[2] = strings.ToLower(m[2])
				}
				return key, m[2] + ": " + m[3]
			}
		}
	}
	return "", text
}

// placed is a fault that knows its place, below that of whoever returns it.
type placed struct {
	path string
	err  error
}

func (p *placed) Error() string { return p.path + ": " + p.err.Error() }
func (p *placed) Unwrap() error { return p.err }

func fault(path, format string, args ...any) error { return &placed{path, fmt.Errorf(format, args...)} }

// within puts the faults of a joined error below a path.
func within(path string, err error) error {
	var errs []error
	for _, e := range joined(err) {
		var at *placed
		if errors.As(e, &at) {
			errs = append(errs, &placed{path + "." + at.path, at.err})
		} else {
			errs = append(errs, &placed{path, e})
		}
	}
	return errors.Join(errs...)
}

// joined lists the parts of a joined error, deeply. An error that only has several causes is one.
func joined(err error) (parts []error) {
	if err == nil {
		return nil
	}
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var texts []string
	for _, e := range many.Unwrap() {
		texts = append(texts, e.Error())
		parts = append(parts, joined(e)...)
	}
	if strings.Join(texts, "\n") != err.Error() {
		return []error{err}
	}
	return parts
}

var planeFault = regexp.MustCompile(`(?s)^dataplane: [\w ]+: (?:rule ("(?:[^"\\]|\\.)*"): )?Service ("(?:[^"\\]|\\.)*")(?:\.|: )(.*?) = (.*): (want .*)$`)

// tellPlane adds what the data plane finds wrong with services. place says where the one of a name stands, and its farm.
func tellPlane(f *conf.File, err error, place func(name string) (service, farm string)) {
	for _, e := range joined(err) {
		m := planeFault.FindStringSubmatch(e.Error())
		if m == nil {
			f.Add("services", "%v", e)
			continue
		}
		name, _ := strconv.Unquote(m[2])
		service, farm := place(name)
		text := m[4] + ": " + m[5]
		field, row, isRow := strings.Cut(m[3], ": row ")
		if key, ok := planeServiceKeys.of(field); ok && service != "" {
			if n, err := strconv.Atoi(row); isRow && err == nil {
				key += fmt.Sprintf("[%d]", n-1)
			}
			f.Add(service+"."+key, "%s", text)
		} else if key, ok := planeFarmKeys.of(field); ok {
			f.Add(farm+"."+key, "%s", text)
		} else {
			f.Add(service, "%s: %s", m[3], text)
		}
	}
}

// matchKey is the key that a fault of a match is about, by the words that it begins with.
func (s *service) matchKey(text string) string {
	if !s.VIP.IsValid() {
		return "match"
	}
	for _, x := range [...]struct{ word, key string }{{"VIP", "vip"}, {"protocol", "protocol"}, {"ports", "port"}, {"clients", "clients"}} {
		if strings.HasPrefix(text, x.word+" ") {
			return x.key
		}
	}
	return ""
}

// tellRules adds what is wrong between services.
func tellRules(f *conf.File, err error, services []*service) {
	for _, e := range joined(err) {
		var r *policy.RuleError
		if !errors.As(e, &r) || r.Index < 0 {
			f.Add("services", "%v", e)
			continue
		}
		s := services[r.Index]
		if r.OtherIndex < 0 {
			f.Add(s.path, "%v", r.Err)
			continue
		}
		o := services[r.OtherIndex]
		if errors.Is(r.Err, policy.ErrDuplicate) {
			f.Add(o.path, "it is for the same packets as %s, %q, such as %v: want one service for them", s.path, s.Name, r.Witness)
		} else {
			f.Add(o.path, "neither it nor %s, %q, is the more specific for packets such as %v: want clients or ports that do not overlap, or one within the other", s.path, s.Name, r.Witness)
		}
	}
}

var l7Fault = regexp.MustCompile(`(?s)^l7: invalid: (?:action )?[\w-]+: (\w+) (".*"): (.*)$`)

// ruleFaults are what is wrong with the rules of a delay, at their keys.
func ruleFaults(err error) error {
	var errs []error
	for _, e := range joined(err) {
		var r *l7.RuleError
		if !errors.As(e, &r) {
			errs = append(errs, e)
			continue
		}
		for _, part := range joined(r.Err) {
			path := fmt.Sprintf("rules[%d]", r.At)
			if r.Field == "second" {
				path += ".and"
			}
			text := part.Error()
			if m := l7Fault.FindStringSubmatch(text); m != nil {
				key := m[1]
				for _, x := range [...]struct{ field, key string }{{"value", "is"}, {"location", "redirect"}, {"code", "reply"}} {
					if key == x.field {
						key = x.key
					}
				}
				path, text = path+"."+key, m[2]+": "+m[3]
			}
			errs = append(errs, &placed{path, errors.New(strings.TrimPrefix(text, "l7: invalid: "))})
		}
	}
	return errors.Join(errs...)
}
