// Answers a prompt word by word, as a model would, and charges for the words that were made. README.md has the commands.
package main

//go:generate go build -o bin/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
//go:generate protoc -I ../../proto --plugin=bin/protoc-gen-go --plugin=bin/protoc-gen-go-grpc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative tollgate/v1/tollgate.proto tollgate/v1/holds.proto

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "example/tollgate/v1"
)

const plan = "tokens"

// The longest answer. What is not used of it comes back.
const answerMax = 50

// One stream. What it holds is renewed while it lasts, and ends with it, also when this process is killed.
type holds struct{ stream pb.HoldService_HoldClient }

func (h holds) call(request *pb.HoldRequest) (*pb.HoldResponse, error) {
	if err := h.stream.Send(request); err != nil {
		return nil, err
	}
	for {
		answer, err := h.stream.Recv()
		switch {
		case err != nil:
			return nil, err
		case answer.GetError() != nil:
			log.Fatal(answer.GetError().Message)
		case answer.GetLost() != nil:
			log.Printf("lost %s: what is settled is charged beyond", answer.GetLost().RequestId)
		default:
			return answer, nil
		}
	}
}

// The model.
func words(prompt string) []string {
	return strings.Fields("You asked " + prompt + " and I say hello")
}

func main() {
	log.SetFlags(0)
	prompt := cmp.Or(strings.Join(os.Args[1:], " "), "nothing")
	key, id := cmp.Or(os.Getenv("CUSTOMER"), "acme"), rand.Text()
	pause, _ := time.ParseDuration(cmp.Or(os.Getenv("WORD_SECONDS"), "0") + "s")
	address := cmp.Or(os.Getenv("TOLLGATE_ADDRESS"), "127.0.0.1:50051")
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	client := pb.NewHoldServiceClient(conn)
	stream, err := client.Hold(context.Background(), grpc.WaitForReady(true))
	if err != nil {
		log.Fatal(err)
	}
	used := uint64(len(strings.Fields(prompt)))
	cost := used + answerMax
	reserve := &pb.ReserveRequest{Key: key, Plan: plan, Cost: &cost, RequestId: id}
	answer, err := holds{stream}.call(&pb.HoldRequest{Id: 1, Call: &pb.HoldRequest_Reserve{Reserve: reserve}})
	if err != nil {
		log.Fatal(err)
	}
	if reserved := answer.GetReserve().Answer; !reserved.Allowed {
		log.Fatalf("denied, come back in %d s", reserved.RetryAfter.GetSeconds()+1)
	}
	for _, word := range words(prompt) {
		time.Sleep(pause)
		fmt.Print(word, " ")
		used++
	}
	settle := &pb.SettleRequest{Key: key, Plan: plan, RequestId: id, Actual: &used}
	answer, err = holds{stream}.call(&pb.HoldRequest{Id: 2, Call: &pb.HoldRequest_Settle{Settle: settle}})
	settled := answer.GetSettle()
	if err != nil {
		// The server goes away and the hold stays until its lease ends. With its id, a settle is safe to send again.
		if settled, err = client.Settle(context.Background(), settle, grpc.WaitForReady(true)); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Printf("\nheld %d, used %d, %d came back, %d remain\n", cost, used, settled.Returned, settled.Answer.GetRemaining())
}
