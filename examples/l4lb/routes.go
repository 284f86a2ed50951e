package main

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/steering"
)

// route is one operation of the JSON API. The OpenAPI document is made from the same table.
type route struct {
	method, path, summary string
	query                 []param
	body, reply           any   // values of the types of body and reply
	refused               []int // statuses of refusals, besides the guard's
	do                    func(in *instance, w http.ResponseWriter, r *http.Request) (any, error)
}

type param struct{ name, doc string }

var errNoNode = errors.New("there is no node")

var sessionParams = []param{
	{"service", "Name of the service."}, {"node", "Name of the node, with or without its farm."}, {"client", "Client's address, network, or address and port."},
	{"vip", "Virtual address, network, or address and port."}, {"protocol", "tcp, udp, icmp or a number."},
}

func routes() []route {
	return []route{
		{"GET", "/api/v1/status", "Everything there is to know at a glance", nil, nil, statusReply{}, nil, func(in *instance, _ http.ResponseWriter, _ *http.Request) (any, error) {
			return in.status(), nil
		}},
		{"GET", "/api/v1/sessions", "Sessions that match", append(sessionParams, param{"limit", "How many to list; default 100, 0 counts only."}), nil, sessionsReply{}, []int{400}, (*instance).getSessions},
		{"DELETE", "/api/v1/sessions", "End the sessions that match; without a filter it wants all=1", append(sessionParams, param{"all", "1 for all sessions."}), nil, killReply{}, []int{400}, (*instance).deleteSessions},
		{"PUT", "/api/v1/nodes/{farm}/{node}", "Drain, disable or enable a node; it holds over reloads and restarts, until the file says something new", nil, wishRequest{}, nodeReply{}, []int{400, 404}, (*instance).putNode},
		{"PUT", "/api/v1/drain", "Have the whole balancer take no new sessions, or take them again", nil, drainRequest{}, okReply{}, []int{400}, func(in *instance, _ http.ResponseWriter, r *http.Request) (any, error) {
			var want drainRequest
			if err := readJSON(r, &want); err != nil {
				return nil, err
			}
			in.drain(want.On)
			return okReply{OK: true}, nil
		}},
		{"GET", "/api/v1/explain", "What would become of the first packet of a flow now, and why", []param{{"src", "Client's address and port."}, {"dst", "Virtual address and port."}, {"protocol", "tcp, udp, icmp or a number; default tcp."}}, nil, explainReply{}, []int{400}, (*instance).getExplain},
		{"GET", "/api/v1/capture", "Packets as they come, in the pcapng format, each with what became of it", append(watchParams, param{"packets", "Most packets; default 10,000."}, param{"snaplen", "Most octets of a packet."}), nil, nil, []int{400}, (*instance).getCapture},
		{"GET", "/api/v1/trace", "Explanations of packets as they are forwarded, a JSON object a line", watchParams, nil, tracedReply{}, []int{400}, (*instance).getTrace},
		{"POST", "/api/v1/reload", "Read the configuration file again", nil, nil, okReply{}, []int{409}, func(in *instance, _ http.ResponseWriter, r *http.Request) (any, error) {
			if err := in.reload(); err != nil {
				return nil, &requestError{http.StatusConflict, fmt.Errorf("the old configuration stays in force: %w", err)}
			}
			return okReply{OK: true}, nil
		}},
	}
}

// checkQuery refuses what is not known, or said twice, in the query of an operation that has one: a filter that is mistyped must not be one that takes
// more.
func (rt *route) checkQuery(r *http.Request) error {
	if rt.query == nil {
		return nil
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return badRequest("query: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if !slices.ContainsFunc(rt.query, func(p param) bool { return p.name == name }) {
			known := make([]string, len(rt.query))
			for i, p := range rt.query {
				known[i] = p.name
			}
			return badRequest("query: %q: unknown; %s", name, conf.Nearest(name, known))
		}
		if n := len(q[name]); n > 1 {
			return badRequest("%s: given %d times: want it once", name, n)
		}
	}
	return nil
}

// handler serves the admin interface behind its guard.
func (in *instance) handler() http.Handler {
	mux := http.NewServeMux()
	for _, rt := range routes() {
		mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) {
			var v any
			err := rt.checkQuery(r)
			if err == nil {
				v, err = rt.do(in, w, r)
			}
			var asked *requestError
			switch {
			case err == nil && v == nil: // it has answered
			case err == nil:
				reply(w, v)
			case errors.As(err, &asked):
				replyError(w, asked.code, err)
			case errors.Is(err, errNoNode):
				replyError(w, http.StatusNotFound, err)
			default:
				replyError(w, http.StatusInternalServerError, err)
			}
		})
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(newRegistry(in.status), promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		in.plane.Stats() // takes the lock of every worker
		reply(w, okReply{OK: true, Text: []string{"the program runs"}})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s := in.status()
		if !s.Ready {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		reply(w, okReply{OK: s.Ready, Text: s.Warnings})
	})
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) { reply(w, openAPI()) })
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.Handle("GET /", page())
	return mux
}

func (in *instance) putNode(_ http.ResponseWriter, r *http.Request) (any, error) {
	var want wishRequest
	if err := readJSON(r, &want); err != nil {
		return nil, err
	}
	var state *steering.AdminState
	if want.Admin != "file" {
		state = new(steering.AdminState)
		if err := state.UnmarshalText([]byte(want.Admin)); err != nil {
			return nil, badRequest("admin: %q: want enabled, draining, sessions-shutdown, disabled or file", want.Admin)
		}
	}
	return in.wish(nodeName(r.PathValue("farm"), r.PathValue("node")), state)
}

func (in *instance) getExplain(_ http.ResponseWriter, r *http.Request) (any, error) {
	q := r.URL.Query()
	number, from, to, err := parseFlow(q.Get("protocol"), q.Get("src"), q.Get("dst"))
	if err != nil {
		return nil, &requestError{http.StatusBadRequest, err}
	}
	e, err := in.plane.ExplainFlow(number, from, to)
	if err != nil {
		return nil, &requestError{http.StatusBadRequest, err}
	}
	return explained(&e), nil
}

func explained(e *dataplane.Explanation) explainReply {
	out := explainReply{Verdict: e.Verdict, Reason: e.Reason, Service: e.Service, Node: e.Node, Known: e.Known, Text: e.String()}
	for _, s := range e.Steps {
		out.Steps = append(out.Steps, stepReply{s.Stage, s.Text})
	}
	return out
}

func (in *instance) getSessions(_ http.ResponseWriter, r *http.Request) (any, error) {
	f, err := parseFilter(r.URL.Query())
	if err != nil {
		return nil, &requestError{http.StatusBadRequest, err}
	}
	limit := 100
	if s := r.URL.Query().Get("limit"); s != "" {
		if limit, err = strconv.Atoi(s); err != nil || limit < 0 {
			return nil, badRequest("limit: %q: want 0 or more", s)
		}
	}
	out := sessionsReply{Sessions: []sessionReply{}}
	for s := range in.plane.Sessions() {
		if !f.match(&s) {
			continue
		}
		if out.Matched++; len(out.Sessions) < limit {
			out.Sessions = append(out.Sessions, describe(&s))
		}
	}
	return out, nil
}

// parseFlow reads the protocol and the two ends of a flow.
func parseFlow(proto, src, dst string) (number uint8, from, to netip.AddrPort, err error) {
	if from, err = netip.ParseAddrPort(src); err != nil {
		return 0, from, to, fmt.Errorf("src %q: want an address and port such as 192.0.2.9:40000", src)
	}
	if to, err = netip.ParseAddrPort(dst); err != nil {
		return 0, from, to, fmt.Errorf("dst %q: want an address and port such as 192.0.2.80:80", dst)
	}
	number, err = parseProtocol(proto)
	return number, from, to, err
}
