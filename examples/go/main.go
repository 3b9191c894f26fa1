// A net/http server that asks tollgate about each request under /api/. README.md has the commands.
package main

//go:generate go build -o bin/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
//go:generate protoc -I ../../proto --plugin=bin/protoc-gen-go --plugin=bin/protoc-gen-go-grpc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative tollgate/v1/tollgate.proto

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pb "example/tollgate/v1"
)

const defaultPlan = "free"

// Above tollgate's store.deadline (25 ms), so that the plan's policy answers when Redis fails.
const deadline = 50 * time.Millisecond

// The start waits so long for tollgate: a request that has to connect first would miss its deadline.
const startWait = 10 * time.Second

type limiter struct {
	client             pb.RateLimitServiceClient
	failOpen, loggedAt atomic.Int64
}

func connect(address string) *limiter {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(), // ShouldAllow charges: what is sent again may be charged twice.
		grpc.WithIdleTimeout(0), // The connection is kept while there are no requests.
		// Finds a tollgate that is back within a second, and one that is gone without a word within 12.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Second, MaxDelay: time.Second}}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}))
	if err != nil {
		log.Fatal(err)
	}
	l := &limiter{client: pb.NewRateLimitServiceClient(conn)}
	ctx, cancel := context.WithTimeout(context.Background(), startWait)
	defer cancel()
	// Peek charges nothing. It also finds a default plan that is misspelt.
	_, err = l.client.Peek(ctx, &pb.PeekRequest{Key: "start", Plan: defaultPlan}, grpc.WaitForReady(true))
	if undecided(err) {
		log.Printf("tollgate at %s does not answer, starting without: %v", address, err)
	} else if err != nil {
		log.Fatalf("tollgate at %s: %v", address, err)
	}
	return l
}

// Whether no tollgate decided in time. Any other error means a wrong call, such as a misspelt plan, and must be seen.
func undecided(err error) bool {
	return status.Code(err) == codes.Unavailable || status.Code(err) == codes.DeadlineExceeded
}

func (l *limiter) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), deadline)
		plan := cmp.Or(r.Header.Get("X-Plan"), defaultPlan)
		answer, err := l.client.ShouldAllow(ctx, &pb.ShouldAllowRequest{Key: key(r), Plan: plan, HttpHeaders: true})
		cancel()
		for name, value := range answer.GetHttpHeaders() {
			w.Header().Set(name, value)
		}
		switch {
		case undecided(err):
			l.letThrough(err)
			next.ServeHTTP(w, r)
		case err != nil:
			log.Printf("rate limit of plan %q: %v", plan, err)
			http.Error(w, "the rate limit could not be checked", http.StatusServiceUnavailable)
		case answer.Allowed:
			next.ServeHTTP(w, r)
		default:
			http.Error(w, "too many requests", http.StatusTooManyRequests)
		}
	})
}

// Who is counted. Check the API key before this: each one that is made up has a quota of its own.
func key(r *http.Request) string {
	if apiKey := r.Header.Get("X-Api-Key"); apiKey != "" {
		return "api-key:" + apiKey
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return "address:" + host
}

// Counts each request, and logs one a second at most.
func (l *limiter) letThrough(err error) {
	count, now := l.failOpen.Add(1), time.Now().Unix()
	if l.loggedAt.Swap(now) != now {
		log.Printf("tollgate did not decide, request let through (%d so far): %v", count, err)
	}
}

func main() {
	l := connect(cmp.Or(os.Getenv("TOLLGATE_ADDRESS"), "127.0.0.1:50051"))
	http.Handle("/api/", l.limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })))
	http.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "# TYPE rate_limit_fail_open_total counter\nrate_limit_fail_open_total %d\n", l.failOpen.Load())
	})
	listener, err := net.Listen("tcp", "127.0.0.1:"+cmp.Or(os.Getenv("PORT"), "8000"))
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on http://%s", listener.Addr())
	log.Fatal(http.Serve(listener, nil))
}
