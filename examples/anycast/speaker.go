package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
)

// speaker tells routers of routes. It learns none from them.
type speaker struct {
	server *server.BgpServer
	conf   *bgpSpeaker
	log    *slog.Logger
	peers  map[netip.Addr]string // what each was configured with
	stop   context.CancelFunc
	ended  sync.Once
}

// startSpeaker begins to speak BGP, to nobody yet.
func startSpeaker(c *bgpSpeaker, log *slog.Logger) (*speaker, error) {
	level := &slog.LevelVar{}
	level.Set(slog.LevelWarn)
	quiet := slog.New(&leveled{log.Handler(), level})
	s := &speaker{server: server.NewBgpServer(server.LoggerOption(quiet, level)), conf: c, log: log, peers: map[netip.Addr]string{}}
	go s.server.Serve()
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	port := int32(c.ListenPort)
	if port == 0 {
		port = -1 // nobody may connect
	}
	err := s.server.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{Asn: c.AS, RouterId: c.RouterID.String(), ListenPort: port}})
	if err == nil {
		err = s.own(ctx)
	}
	if err == nil {
		err = s.server.WatchEvent(ctx, server.WatchEventMessageCallbacks{OnPeerUpdate: s.changed}, server.WatchPeer())
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("bgp: %w", err)
	}
	return s, nil
}

// own has the server take no routes but its own: what one router sends must never reach another through a balancer.
func (s *speaker) own(ctx context.Context) error {
	own := &api.Policy{Name: "own", Statements: []*api.Statement{{
		Name:       "local",
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
	}}}
	if err := s.server.AddPolicy(ctx, &api.AddPolicyRequest{Policy: own}); err != nil {
		return err
	}
	return s.server.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Name: "global", Direction: api.PolicyDirection_POLICY_DIRECTION_IMPORT, Policies: []*api.Policy{own}, DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
	}})
}

// close ends all sessions, with which routers forget all routes. Closing again does nothing.
func (s *speaker) close() {
	s.ended.Do(func() {
		s.stop()
		s.server.Stop()
	})
}

// changed logs sessions that begin and end.
func (s *speaker) changed(e *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
	if e.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	st := e.Peer.State
	switch {
	case st.SessionState == bgp.BGP_FSM_ESTABLISHED:
		s.log.Info("BGP session established", "router", st.NeighborAddress, "as", st.PeerASN)
	case st.SessionState == bgp.BGP_FSM_IDLE && st.DisconnectReason != api.PeerState_DISCONNECT_REASON_UNSPECIFIED:
		s.log.Warn("BGP session ended", "router", st.NeighborAddress, "reason", st.DisconnectReason, "message", st.DisconnectMessage)
	}
}

var apiFamilies = [...]*api.Family{
	ipv4: {Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST},
	ipv6: {Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST},
}

// setPeers replaces the routers that are told. Sessions with those that stay as they were go on.
func (s *speaker) setPeers(peers []*peer) error {
	ctx := context.Background()
	want := map[netip.Addr]*peer{}
	for _, p := range peers {
		want[p.Address] = p
	}
	var errs []error
	for a, was := range s.peers {
		if p := want[a]; p != nil && p.key() == was {
			continue
		}
		errs = append(errs, s.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: a.String()}))
		delete(s.peers, a)
	}
	for _, p := range peers {
		if _, ok := s.peers[p.Address]; ok {
			continue
		}
		if err := s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: s.peer(p)}); err != nil {
			errs = append(errs, fmt.Errorf("bgp: router %v: %w", p.Address, err))
			continue
		}
		s.peers[p.Address] = p.key()
	}
	return errors.Join(errs...)
}

// key tells peers apart that differ in anything.
func (p *peer) key() string { return fmt.Sprint(*p) + p.Password.text }

func (s *speaker) peer(p *peer) *api.Peer {
	hold := uint64(or(s.conf.HoldTime, 9*time.Second) / time.Second)
	a := &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: p.Address.String(), PeerAsn: p.AS, AuthPassword: p.Password.text},
		Transport: &api.Transport{RemotePort: uint32(p.Port), PassiveMode: p.Passive},
		Timers:    &api.Timers{Config: &api.TimersConfig{HoldTime: hold, KeepaliveInterval: max(1, hold/3), ConnectRetry: 3, IdleHoldTimeAfterReset: 3}},
	}
	if p.Local.IsValid() {
		a.Transport.LocalAddress = p.Local.String()
	}
	if p.Hops > 1 {
		a.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(p.Hops)}
	}
	for _, fam := range p.families() {
		a.AfiSafis = append(a.AfiSafis, &api.AfiSafi{Config: &api.AfiSafiConfig{Family: apiFamilies[fam], Enabled: true}})
	}
	return a
}

// announce tells all routers of v, also if it has changed.
func (s *speaker) announce(v *vip) error {
	path, err := s.path(v.Address.Prefix)
	if err != nil {
		return err
	}
	path.Attrs = append(path.Attrs, bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP))
	if v.Prepend > 0 {
		// The AS of every route is added when it is sent.
		path.Attrs = append(path.Attrs, bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{
			bgp.NewAs4PathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, slices.Repeat([]uint32{s.conf.AS}, int(v.Prepend))),
		}))
	}
	if v.MED != nil {
		path.Attrs = append(path.Attrs, bgp.NewPathAttributeMultiExitDisc(*v.MED))
	}
	if len(v.Communities) > 0 {
		var cs []uint32
		for _, c := range v.Communities {
			cs = append(cs, uint32(c))
		}
		path.Attrs = append(path.Attrs, bgp.NewPathAttributeCommunities(cs))
	}
	answers, err := s.server.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{path}})
	for _, a := range answers {
		err = errors.Join(err, a.Error)
	}
	if err != nil {
		return fmt.Errorf("bgp: announce %v: %w", v.Address, err)
	}
	return nil
}

// withdraw takes p back.
func (s *speaker) withdraw(p netip.Prefix) error {
	path, err := s.path(p)
	if err != nil {
		return err
	}
	path.Withdrawal = true
	if err := s.server.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{path}}); err != nil {
		return fmt.Errorf("bgp: withdraw %v: %w", p, err)
	}
	return nil
}

// path is a route to p with its next hop: an unspecified one stands for the end of each session.
func (s *speaker) path(p netip.Prefix) (*apiutil.Path, error) {
	nlri, err := bgp.NewIPAddrPrefix(p)
	if err != nil {
		return nil, fmt.Errorf("bgp: %v: %w", p, err)
	}
	fam := familyOf(p.Addr())
	hop := s.conf.nextHop(fam)
	if fam == ipv4 {
		if !hop.IsValid() {
			hop = netip.IPv4Unspecified()
		}
		a, err := bgp.NewPathAttributeNextHop(hop)
		return &apiutil.Path{Family: bgp.RF_IPv4_UC, Nlri: nlri, Attrs: []bgp.PathAttributeInterface{a}}, err
	}
	if !hop.IsValid() {
		hop = netip.IPv6Unspecified()
	}
	a, err := bgp.NewPathAttributeMpReachNLRI(bgp.RF_IPv6_UC, []bgp.PathNLRI{{NLRI: nlri}}, hop)
	return &apiutil.Path{Family: bgp.RF_IPv6_UC, Nlri: nlri, Attrs: []bgp.PathAttributeInterface{a}}, err
}

// peerStatus is what is known of a router.
type peerStatus struct {
	Address     string  `json:"address"`
	AS          uint32  `json:"as"`
	Established bool    `json:"established"`
	State       string  `json:"state"`
	Seconds     float64 `json:"seconds"` // since the session was established
}

// status lists the routers.
func (s *speaker) status() (all []peerStatus) {
	now := time.Now()
	_ = s.server.ListPeer(context.Background(), &api.ListPeerRequest{}, func(p *api.Peer) {
		st := peerStatus{Address: p.Conf.NeighborAddress, AS: p.Conf.PeerAsn, State: p.State.SessionState.String()}
		st.Established = p.State.SessionState == api.PeerState_SESSION_STATE_ESTABLISHED
		if up := p.Timers.GetState().GetUptime(); st.Established && up != nil {
			st.Seconds = math.Round(now.Sub(up.AsTime()).Seconds())
		}
		all = append(all, st)
	})
	slices.SortFunc(all, func(a, b peerStatus) int {
		x, _ := netip.ParseAddr(a.Address)
		y, _ := netip.ParseAddr(b.Address)
		return x.Compare(y)
	})
	return all
}

// leveled is a slog.Handler that passes what is at least level.
type leveled struct {
	slog.Handler
	level *slog.LevelVar
}

func (h *leveled) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.level.Level() && h.Handler.Enabled(ctx, l)
}

func (h *leveled) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &leveled{h.Handler.WithAttrs(attrs), h.level}
}

func (h *leveled) WithGroup(name string) slog.Handler {
	return &leveled{h.Handler.WithGroup(name), h.level}
}
